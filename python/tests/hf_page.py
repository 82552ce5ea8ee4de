"""The page of families, docs/hf_families.md: python python/tests/hf_page.py > docs/hf_families.md"""

import textwrap

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from armillary import hf

HEAD = """# Families of Hugging Face transformers

Families of transformers {version} with a causal language model, by `config.model_type`; what `hf.install`
takes of them: [python.md](python.md#hugging-face-transformers).

Made by `python python/tests/hf_page.py > docs/hf_families.md` from `python/armillary/_hf_families.py`.

## Right

Loss and every gradient of a tiny model equal those of one device to 1e-5 on 2 ranks, with packed
documents and, where the family has them, layers with a sliding window
(`python/tests/hf_families_test.py`); under bf16 autocast their errors are at most 2.5 times those of one
device. Layers of other types than `full_attention` and `sliding_attention`, and rotary positions of a
type that is not known, are refused.
"""


def wrapped(families):
    text = ", ".join(f"`{family}`" for family in sorted(families))
    return "\n".join(textwrap.wrap(text, 118, break_on_hyphens=False))


def page():
    lines = [HEAD.format(version=".".join(transformers.__version__.split(".")[:2])), wrapped(hf.FAMILIES), ""]
    lines += ["## Refused", "", "| families | have |", "|---|---|"]
    of_reason = {}
    for family, reason in hf.REFUSED.items():
        if family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            of_reason.setdefault(reason, []).append(f"`{family}`")
    lines += [f"| {', '.join(families)} | {reason} |" for reason, families in of_reason.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())

"""`armillary check recipe.toml`: the model of a recipe, with random weights, over ranks and on one device."""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from armillary._check import check
from armillary._ops import leave_groups
from armillary._recipe_keys import check_keys
from armillary._report import Report
from armillary._texts import excerpt
from armillary.errors import Error, InvalidArgument
from armillary.masks import as_mask, causal
from armillary.sequence_parallel import SequenceParallel

_EPILOG = """examples:
  armillary check recipes/llama.toml
  torchrun --nproc-per-node 4 -m armillary check recipes/llama.toml --report check.txt

The recipe is one of `armillary train`: the shape of [model], training.seq_len and [parallelism] are read,
with the defaults of `armillary train`. model.hf_folder names a folder of transformers in the place of
model.name: with its weights if it has some. Exit code 0: equal to one device; 1: not; 2: refused, or one
rank, where nothing is spread."""


def _read(path: str) -> dict[str, Any]:
    recipe = _parsed(path, excerpt(path))
    check_keys(recipe)
    return recipe


def _parsed(path: str, shown: str) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError as failure:
        text = "check: Python before 3.11 reads no TOML; 3.11 or later is required"
        raise InvalidArgument(text) from failure
    try:
        # Opened as C++ opens inputs: a pipe that nobody writes to is not waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArgument(f"check: {shown} is no file; a recipe in TOML is required")
            return tomllib.loads(file.read())
    except OSError as failure:
        text = f"check: {shown}: {failure.strerror}; a recipe in TOML is required"
        raise InvalidArgument(text) from failure
    except UnicodeDecodeError as failure:
        text = f"check: {shown}: not UTF-8 at byte {failure.start}; a recipe in TOML is required"
        raise InvalidArgument(text) from failure
    except tomllib.TOMLDecodeError as failure:
        place = re.search(r"line \d+, column \d+|end of document", str(failure))
        text = f"check: {shown}: no TOML at {place[0] if place else 'its end'}; a recipe in TOML is required"
        raise InvalidArgument(text) from failure


def _config_of(model: dict[str, Any], tokens: int) -> Any:
    """The shape of a recipe's model as a configuration of transformers."""
    import transformers

    dim, heads = model.get("dim", 128), model.get("n_heads", 4)
    head_dim = model.get("head_dim", 0) if model.get("name") == "llama" else 0
    kv_heads, hidden = model.get("n_kv_heads") or heads, model.get("hidden_dim", 0)
    if (dim % heads and not head_dim) or heads % kv_heads:
        raise InvalidArgument(
            f"check: model.dim {dim}, n_heads {heads}, n_kv_heads {kv_heads}; n_heads that divide dim, and "
            "n_kv_heads that divide n_heads, are required"
        )
    shape: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    shape["vocab_size"] = model.get("vocab_size", 257)
    name = model.get("name", "gpt")
    if name in ("gpt", "gpt2"):
        if kv_heads != heads:
            raise InvalidArgument(
                f"check: model.name is {name}, and n_kv_heads is {kv_heads}: the GPT of transformers has as "
                f'many as n_heads, {heads}; those, or name = "llama", are required'
            )
        shape |= {"n_embd": dim, "n_layer": model.get("n_layers", 4), "n_head": heads, "n_positions": tokens}
        if name == "gpt2":
            shape["layer_norm_epsilon"] = float(model.get("norm_eps", 1e-5))
            shape["tie_word_embeddings"] = model.get("enable_weight_tying", True)
        return transformers.GPT2Config(**shape, n_inner=hidden or None)
    if name != "llama":
        required = "gpt, gpt2, llama or model.hf_folder is required"
        raise InvalidArgument(f"check: model.name is {name!r}; {required}")
    for key, plain in (
        ("rope_scaling", "none"),
        ("qkv_bias", False),
        ("qk_norm", False),
        ("sliding_window", 0),
    ):
        if model.get(key, plain) != plain:
            raise InvalidArgument(
                f"check: model.{key} is {excerpt(str(model[key]))}; model.hf_folder, a folder of "
                "transformers with such a model, is required for it"
            )
    multiple = model.get("multiple_of", 256)
    if not hidden:
        width = int(model.get("ffn_dim_multiplier", 1.0) * (8 * dim // 3))
        hidden = -(-width // multiple) * multiple
    return transformers.LlamaConfig(
        **shape,
        hidden_size=dim,
        num_hidden_layers=model.get("n_layers", 4),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim or dim // heads,
        intermediate_size=hidden,
        rms_norm_eps=float(model.get("norm_eps", 1e-5)),
        rope_theta=float(model.get("rope_theta", 10000)),
        tie_word_embeddings=model.get("enable_weight_tying", False),
        max_position_embeddings=tokens,
    )


def _model_of(model: dict[str, Any], tokens: int, dtype: torch.dtype) -> Any:
    import transformers

    torch.manual_seed(0)
    classes = transformers.AutoModelForCausalLM
    folder = model.get("hf_folder")
    if folder is None:
        return classes.from_config(_config_of(model, tokens)).to(dtype)
    if not Path(folder).is_dir():
        raise InvalidArgument(f"check: model.hf_folder '{excerpt(folder)}' is no folder; one is required")
    if list(Path(folder).glob("*.safetensors")):
        return classes.from_pretrained(folder, local_files_only=True).to(dtype)
    return classes.from_config(transformers.AutoConfig.from_pretrained(folder, local_files_only=True)).to(
        dtype
    )


def _batch_of(vocabulary: int, tokens: int, documents: bool) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(0, vocabulary, (1, tokens), generator=generator)
    batch = {"input_ids": input_ids, "labels": input_ids.clone()}
    if documents:
        ends = torch.rand(1, tokens, generator=generator) < 8 / tokens
        batch["document_ids"] = ends.cumsum(-1)
    return batch


def check_recipe(path: str, *, tokens: int, dtype: str, report: str | None) -> Report:
    """Checks the model of a recipe over the ranks of the default group."""
    if tokens < 2:
        raise InvalidArgument(f"check: --tokens is {tokens}; 2 or more is required")
    recipe = _read(path)
    parallelism = recipe.get("parallelism", {})
    tokens = min(tokens, recipe.get("training", {}).get("seq_len", tokens))
    model = _model_of(recipe.get("model", {}), tokens, getattr(torch, dtype))
    mask = parallelism.get("mask", "documents")
    sp = SequenceParallel(
        strategy=parallelism.get("strategy", "ring"),
        layout=parallelism.get("layout", "zigzag"),
        wire=parallelism.get("wire", "accumulator"),
        mask=causal() if mask == "documents" else as_mask(mask),
    )
    batch = _batch_of(model.config.vocab_size, tokens, mask == "documents")
    return check(model, batch, sp, report=report)


def main(arguments: list[str] | None = None) -> int:
    """The program ``python -m armillary``. Returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="armillary", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("check", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    verb.add_argument("recipe", help="a recipe of armillary train")
    verb.add_argument("--tokens", type=int, default=512, help="tokens of the sequence, at most (512)")
    verb.add_argument("--dtype", choices=["float32", "float64", "bfloat16", "float16"], default="float32")
    verb.add_argument("--report", help="a file for the report: JSON if its name ends so, text otherwise")
    flags = parser.parse_args(arguments)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    try:
        report = check_recipe(flags.recipe, tokens=flags.tokens, dtype=flags.dtype, report=flags.report)
    except Error as failure:
        print(f"armillary: {failure}", file=sys.stderr)
        return 2
    finally:
        leave_groups()
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(report)
    if dist.is_initialized():
        dist.destroy_process_group()
    if not report.ok:
        return 1
    return 2 if report.world == 1 else 0

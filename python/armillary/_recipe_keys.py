"""Keys of a recipe: what is not known, or of another kind than is read, is refused by name."""

from __future__ import annotations

import difflib
from typing import Any

from armillary._texts import excerpt
from armillary.errors import InvalidArgument

#: Keys of a recipe of `armillary train`, and hf_folder, by section.
KEYS = {
    "job": "dump_folder description",
    "model": """name dim n_layers n_heads n_kv_heads hidden_dim vocab_size norm_eps rope_theta max_seq_len
        enable_weight_tying multiple_of ffn_dim_multiplier rope_scaling head_dim qkv_bias qk_norm
        sliding_window num_experts num_shared_experts top_k moe_inter_dim score_func route_norm route_scale
        router_aux_loss_coef balance_over load_balance_coeff image_height image_width channels patch_size
        n_classes class_dropout objective text_tokens words modulation hf_folder""",
    "training": """dataset_path dataset_extensions seq_len global_batch_size local_batch_size steps max_norm
        dtype mixed_precision_param mixed_precision_reduce loss_chunk_tokens seed check_replicas
        validation_path validation_interval validation_sequences
        spike_guard spike_loss_factor spike_norm_factor spike_window spike_skip spike_rollbacks""",
    "activation_checkpoint": "mode",
    "optimizer": "name lr beta1 beta2 eps weight_decay state_device",
    "lr_scheduler": "warmup_steps decay_ratio decay_type min_lr_factor",
    "parallelism": """pipeline_parallel_degree data_parallel_replicate_degree data_parallel_shard_degree
        context_parallel_degree tensor_parallel_degree expert_parallel_degree tensor_parallel_keep_inputs zero
        reshard_after_forward threads_per_rank strategy layout mask wire proofs""",
    "checkpoint": "enable folder interval keep_latest_k",
    "comm": "train_timeout_seconds",
    "metrics": "log_freq enable_tensorboard save_tb_folder cluster",
}
# Keys that are read, with their least value or their kind.
_SIZES = {
    "dim": 1,
    "n_layers": 1,
    "n_heads": 1,
    "n_kv_heads": 0,
    "hidden_dim": 0,
    "vocab_size": 1,
    "max_seq_len": 1,
    "multiple_of": 1,
    "head_dim": 0,
    "sliding_window": 0,
    "seq_len": 1,
}
_SWITCHES = ("enable_weight_tying", "qkv_bias", "qk_norm")
_NUMBERS = ("norm_eps", "rope_theta", "ffn_dim_multiplier")
_TEXTS = ("hf_folder", "layout", "mask", "name", "rope_scaling", "strategy", "wire")


def _refuse_name(what: str, name: str, known: list[str]) -> None:
    if name in known:
        return
    nearest = difflib.get_close_matches(name[:100], known, 1, 0)[0]
    raise InvalidArgument(
        f"check: {what} '{excerpt(name)}' is not known; {', '.join(known)} is required; nearest: {nearest}"
    )


def check_keys(recipe: dict[str, Any]) -> None:
    """Raises `InvalidArgument` for what no recipe has, and for values of another kind that are read."""
    for section, keys in recipe.items():
        _refuse_name("section", section, list(KEYS))
        if not isinstance(keys, dict):
            raise InvalidArgument(f"check: {section} is no section; [{section}] with keys is required")
        for key, value in keys.items():
            _refuse_name(f"key of [{section}]", key, KEYS[section].split())
            if section in ("model", "parallelism") or key == "seq_len":
                _check_value(f"{section}.{key}", key, value)


def _check_value(path: str, key: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    wrong = ""
    if key in _SIZES and not (is_number and isinstance(value, int) and value >= _SIZES[key]):
        wrong = f"a whole number of at least {_SIZES[key]}"
    if key in _NUMBERS and not (is_number and 0 < value < float("inf")):
        wrong = "a number above 0"
    if key in _TEXTS and not isinstance(value, str):
        wrong = "a text"
    if key in _SWITCHES and not isinstance(value, bool):
        wrong = "true or false"
    if wrong:
        raise InvalidArgument(f"check: {path} is {excerpt(repr(value))}; {wrong} is required")

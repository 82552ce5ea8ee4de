"""Arguments and methods of the Trainer of transformers: what is honoured over ranks, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import transformers

from armillary.errors import InvalidArgument

#: Fields of `TrainingArguments` whose run over ranks gives the numbers of one process, by what they choose.
HONOURED_ARGUMENTS = {
    "steps and batches": (
        "gradient_accumulation_steps max_steps num_train_epochs per_device_eval_batch_size "
        "per_device_train_batch_size"
    ),
    "the rate and the optimizer": (
        "adam_beta1 adam_beta2 adam_epsilon learning_rate lr_scheduler_kwargs lr_scheduler_type "
        "max_grad_norm optim_args warmup_steps weight_decay"
    ),
    "the loss": "average_tokens_across_devices bf16 label_smoothing_factor",
    "the data, which every rank reads": (
        "data_seed dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context "
        "dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory "
        "dataloader_prefetch_factor ignore_data_skip length_column_name remove_unused_columns seed "
        "train_sampling_strategy"
    ),
    "evaluation": (
        "batch_eval_metrics bf16_full_eval do_eval do_predict do_train eval_accumulation_steps eval_delay "
        "eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object "
        "fp16_full_eval include_for_metrics prediction_loss_only"
    ),
    "checkpoints": (
        "greater_is_better load_best_model_at_end metric_for_best_model output_dir "
        "restore_callback_states_from_checkpoint resume_from_checkpoint save_on_each_node save_only_model "
        "save_steps save_strategy save_total_limit"
    ),
    "memory": (
        "activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing "
        "gradient_checkpointing_kwargs torch_empty_cache_steps"
    ),
    "logs": (
        "disable_tqdm include_num_input_tokens_seen log_level log_level_replica log_on_each_node "
        "logging_first_step logging_nan_inf_filter logging_steps logging_strategy project report_to run_name "
        "skip_memory_metrics trackio_bucket_id trackio_space_id trackio_static_space_id"
    ),
    "the hub, to which rank 0 writes": (
        "hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token push_to_hub"
    ),
    "processes": (
        "ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph "
        "ddp_timeout full_determinism local_rank use_cpu"
    ),
}


@dataclasses.dataclass(frozen=True)
class Refused:
    """The reason of a refusal, and the values that are taken all the same."""

    reason: str
    taken: tuple[Any, ...] = (None, False)


_ONE_PLACE = "parallelism of its own, beside sp, which spreads sequences over all ranks"
_COMPILED = "torch.compile of the whole model breaks at each call of attention over ranks"
_OPTIMIZERS = (
    "adafactor",
    "adagrad",
    "adamw_torch",
    "adamw_torch_fused",
    "rmsprop",
    "sgd",
)

#: Fields of `TrainingArguments` that are refused unless they have a value that is taken.
REFUSED_ARGUMENTS = {
    "auto_find_batch_size": Refused("a rank without memory is not known to the others"),
    "debug": Refused("its hooks see the tokens of one rank", (None, "", [])),
    "deepspeed": Refused(_ONE_PLACE),
    "enable_jit_checkpoint": Refused("ranks hear a signal in different steps"),
    "fp16": Refused("autocast with scaled gradients, which needs kernels of a GPU"),
    "fsdp": Refused(_ONE_PLACE, (None, False, "", [])),
    "fsdp_config": Refused(_ONE_PLACE, (None, {})),
    "label_names": Refused("labels of a causal language model are 'labels'", (None, ["labels"])),
    "liger_kernel_config": Refused("kernels in the place of the model's forward pass and loss", (None, {})),
    "neftune_noise_alpha": Refused("noise is drawn by each rank, and scaled by the length of its shard"),
    "optim": Refused("not tested with gradients of all ranks", _OPTIMIZERS),
    "optim_target_modules": Refused("for optimizers that are not tested with gradients of all ranks"),
    "parallelism_config": Refused(_ONE_PLACE),
    "tf32": Refused("a format of GPUs"),
    "torch_compile": Refused(_COMPILED),
    "torch_compile_backend": Refused(_COMPILED),
    "torch_compile_mode": Refused(_COMPILED),
    "use_cache": Refused("a cache of keys holds those of one rank"),
    "use_liger_kernel": Refused("kernels in the place of the model's forward pass and loss"),
}

#: Keys of `accelerator_config` with the values that are taken, or None for all.
ACCELERATOR_KEYS: dict[str, tuple[Any, ...] | None] = {
    "dispatch_batches": (None, False),
    "even_batches": None,
    "gradient_accumulation_kwargs": None,
    "non_blocking": None,
    "split_batches": None,
    "use_seedable_sampler": None,
}
_ACCUMULATION_KEYS = frozenset({"num_steps", "sync_each_batch"})
_CHECKPOINTING_KEYS = frozenset({"every_n_layers", "use_reentrant"})

#: Arguments of `Trainer.__init__`, all honoured.
HONOURED_INIT = (
    "args callbacks compute_loss_func compute_metrics data_collator eval_dataset model model_init "
    "optimizer_cls_and_kwargs optimizers preprocess_logits_for_metrics processing_class train_dataset"
)

#: Methods and attributes that a subclass may override.
HONOURED_METHODS = (
    "_get_eval_sampler _get_train_sampler _save _save_checkpoint add_callback compute_loss "
    "create_model_card create_optimizer create_optimizer_and_scheduler create_scheduler evaluate "
    "floating_point_ops get_decay_parameter_names get_eval_dataloader get_learning_rates "
    "get_num_trainable_parameters get_optimizer_cls_and_kwargs get_optimizer_group get_test_dataloader "
    "get_train_dataloader init_hf_repo log log_metrics loss_is_scaled_for_ga metrics_format num_examples "
    "pop_callback predict push_to_hub remove_callback save_metrics save_model save_state train"
)
_OF_LOOP = "the loop of training, which shares batches, counts and gradients with sp"
_OF_BATCH = "batches are whole here, and are spread over ranks in a call of the model: override compute_loss"
_OF_STATE = "the state of a run, which all ranks must write and read alike"
_OF_PROCESSES = "the place of this process among the ranks of sp"

#: Methods that a subclass must leave, by the reason.
REFUSED_METHODS = {
    _OF_BATCH: (
        "_get_collator_with_removed_columns _get_dataloader _prepare_context_parallel_inputs _prepare_input "
        "_prepare_inputs _remove_unused_columns _set_signature_columns_if_needed evaluation_loop "
        "prediction_step training_step"
    ),
    _OF_LOOP: (
        "_clip_grad_norm _evaluate _finalize_training _get_grad_norm _get_learning_rate "
        "_get_num_items_in_batch _has_mixed_mesh_grads _init_training_state _inner_training_loop "
        "_maybe_log_save_evaluate _mixed_mesh_grad_norm _prepare_for_training _run_epoch "
        "_track_num_input_tokens _update_auto_batch_size _validate_args "
        "autocast_smart_context_manager compute_loss_context_manager get_batch_samples "
        "get_total_train_batch_size set_initial_training_values store_flos"
    ),
    _OF_STATE: (
        "_determine_best_metric _finish_current_push _get_output_dir _issue_warnings_after_load "
        "_load_best_model _load_callback_state _load_from_checkpoint _load_optimizer_and_scheduler "
        "_load_rng_state _load_scaler _push_from_checkpoint _save_optimizer_and_scheduler _save_rng_state "
        "_save_scaler call_model_init end"
    ),
    _OF_PROCESSES: (
        "_build_accelerator_args _defer_fsdp_gradient_reduction _move_model_to_device "
        "_sync_replicated_trainable_parameters _wrap_model create_accelerator_and_postprocess get_cp_size "
        "get_sp_size get_tp_size is_local_process_zero is_world_process_zero"
    ),
    "trials of a search are drawn by each rank": (
        "_hp_search_setup _report_to_hp_search _tune_save_checkpoint hyperparameter_search"
    ),
}
#: Fields that are honoured or refused by their keys.
LIMITED = frozenset({"accelerator_config"})


def names_of(groups: dict[str, str]) -> frozenset[str]:
    """All names of a table."""
    return frozenset(name for names in groups.values() for name in names.split())


def check_arguments(args: transformers.TrainingArguments) -> None:
    """Raises `InvalidArgument` for the first field that is not honoured, with its reason."""
    honoured = names_of(HONOURED_ARGUMENTS) | LIMITED
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if field.name in honoured or _is_default(field, value):
            continue
        refused = REFUSED_ARGUMENTS.get(field.name)
        if refused is None:
            raise InvalidArgument(
                f"Trainer: args.{field.name} is {value!r}; it is not known, so its default is required"
            )
        if not any(value == one for one in refused.taken):
            raise InvalidArgument(
                f"Trainer: args.{field.name} is {_shown(value)}: {refused.reason}; "
                f"{_choice(refused.taken)} is required"
            )
    _check_keys("accelerator_config.gradient_accumulation_kwargs", _accumulation(args), _ACCUMULATION_KEYS)
    _check_keys(
        "activation_checkpointing_kwargs", args.activation_checkpointing_kwargs or {}, _CHECKPOINTING_KEYS
    )
    _check_accelerator(args)


def _shown(value: Any) -> str:
    return repr(getattr(value, "value", value))


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return bool(value == field.default)


def _choice(taken: tuple[Any, ...]) -> str:
    names = [repr(one) for one in taken if one]
    return f"one of {', '.join(names)}" if names else "its default"


def _accumulation(args: transformers.TrainingArguments) -> dict[str, Any]:
    return args.accelerator_config.gradient_accumulation_kwargs or {}


def _check_keys(name: str, arguments: dict[str, Any], known: frozenset[str]) -> None:
    for key in sorted(set(arguments) - known):
        raise InvalidArgument(
            f"Trainer: args.{name} has {key}, which is not tested over ranks; none but "
            f"{', '.join(sorted(known))} is required"
        )


def _check_accelerator(args: transformers.TrainingArguments) -> None:
    for field in dataclasses.fields(args.accelerator_config):
        value, taken = getattr(args.accelerator_config, field.name), ACCELERATOR_KEYS.get(field.name, ())
        if taken is None or _is_default(field, value) or value in taken:
            continue
        raise InvalidArgument(
            f"Trainer: args.accelerator_config.{field.name} is {value!r}: every rank reads whole batches; "
            "its default is required"
        )


def check_overrides(kind: type, base: type) -> None:
    """Raises `InvalidArgument` for the first method of transformers that a class between `kind` and
    `transformers.Trainer` overrides and that is not known to be right; `base` is our own class."""
    reasons = {name: reason for reason, names in REFUSED_METHODS.items() for name in names.split()}
    allowed = frozenset(HONOURED_METHODS.split())
    ours = base.__mro__
    for one in kind.__mro__:
        if one in ours:
            continue
        for name in vars(one):
            is_theirs = hasattr(transformers.Trainer, name) or name in vars(base)
            if name.startswith("__") or not is_theirs or name in allowed:
                continue
            reason = reasons.get(name, "a method of transformers that is not known")
            raise InvalidArgument(
                f"Trainer: {one.__name__} overrides {name}: {reason}; a class without it is required"
            )


def as_text() -> str:
    """The table of docs/trainer.md: what is refused. All else that transformers has is honoured."""
    lines = ["| argument of `TrainingArguments` | refused, but |", "|---|---|"]
    alike: dict[tuple[str, str], list[str]] = {}
    for name, refused in sorted(REFUSED_ARGUMENTS.items()):
        alike.setdefault((_choice(refused.taken), refused.reason), []).append(name)
    for (choice, reason), same in alike.items():
        lines.append(f"| {_quoted(same)} | {choice}: {reason} |")
    lines += ["", "| method that a subclass overrides | refused, with its private parts |", "|---|---|"]
    for reason, names in REFUSED_METHODS.items():
        public = [name for name in names.split() if not name.startswith("_")]
        lines.append(f"| {_quoted(public)} | {reason} |")
    return "\n".join(lines) + "\n"


def _quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)

# The public headers, below armillary/: those that `cmake --install` installs. Whatever they include of ours is listed too
# (tests/install/install_test.py). A header that is not here may change or go without a word.

set(armillary_plan_headers version.h
  comm/array.h comm/collectives.h comm/communicator.h comm/lane_blocks.h comm/local.h comm/mesh.h comm/peer_wait.h
  comm/rank_state.h comm/reduce.h comm/solo.h comm/strided.h
  core/error.h core/mesh_shape.h core/section.h core/small_vector.h core/spec.h core/user_text.h
  predict/cost/attention_memory.h predict/cost/attention_time.h predict/cost/decode.h predict/cost/group.h
  predict/cost/known_models.h
  predict/cost/methods.h predict/cost/model.h predict/cost/overlap.h predict/cost/step.h
  plan/blocks.h plan/degrees.h plan/fold.h plan/json.h plan/layout.h plan/lower_bound.h
  plan/mask/mask.h plan/passes/lower.h plan/passes/replay.h plan/plan.h plan/problem.h plan/reach.h plan/runs.h
  plan/strategies/schedule.h plan/segments.h plan/strategies/grid.h plan/strategies/movement.h plan/strategies/option_keys.h
  plan/strategies/options.h plan/strategies/presets.h
  plan/strategies/strategy.h plan/text.h plan/verify/verify.h plan/verify/verify_folded.h plan/mask/visibility.h plan/words.h
  plan/program/batches.h plan/program/block_ids.h plan/program/check.h plan/program/diagnostics.h
  plan/program/dtype.h plan/program/grid.h plan/program/hazards.h plan/program/measures.h
  plan/program/program.h plan/program/vocabulary.h plan/program/word.h
  plan/decode/check_decode.h plan/decode/decode_program.h plan/decode/words.h
  plan/relayout/cache_layout.h plan/relayout/check_relayout.h plan/relayout/relayout_program.h plan/relayout/shape.h
  plan/relayout/words.h
  proof/digest.h proof/prove.h
  host/recorder/diagnosis.h host/recorder/process_state.h host/recorder/reader.h host/recorder/recorder.h
  lab/report/measured.h lab/report/report.h
  predict/sim/cluster.h predict/sim/compare.h predict/sim/cost.h predict/sim/curves.h predict/sim/engine.h
  predict/sim/timeline.h predict/sim/topology.h predict/sim/trace.h
  text/tokenizer/added_tokens.h text/tokenizer/bpe.h text/tokenizer/code_point_set.h text/tokenizer/decoder.h
  text/tokenizer/load_tokenizer.h text/tokenizer/normal_form.h text/tokenizer/normalizer.h text/tokenizer/pattern_tree.h
  text/tokenizer/pre_tokenizer.h text/tokenizer/split_pattern.h text/tokenizer/tokenizer.h text/tokenizer/unicode.h
  text/tokenizer/vocabulary.h
  predict/tune/advise.h predict/tune/advise_decode.h predict/tune/answer.h predict/tune/automatic.h
  predict/tune/candidate.h predict/tune/explain.h predict/tune/search.h)

# With libtorch.
set(armillary_torch_headers
  attention/attention.h attention/attention_in_progress.h attention/sequence_parallel_attention.h
  kernel/block_attention.h kernel/cpu/cpu_flags.h kernel/cpu_kernel.h kernel/dropout.h kernel/merge.h
  kernel/reference.h kernel/score.h
  model/attend.h model/decoder_options.h model/expert_parallel.h model/fields.h model/global_range.h model/model.h
  model/model_options.h model/moe_options.h model/parameter.h model/recompute.h model/registry.h model/rope_scaling.h
  model/tensor_parallel.h model/weights.h
  runtime/bound_tensors.h runtime/compiled_program.h runtime/device.h
  runtime/execution_pool.h runtime/executor.h runtime/gate.h runtime/machine.h runtime/machine_program.h
  runtime/rank.h runtime/recorded_ops.h runtime/stream_device.h runtime/zero_copy.h
  serve/generate.h serve/kv_cache.h serve/model_sessions.h serve/model_weights.h serve/page_pool.h serve/sampling.h
  serve/session_threads.h serve/sessions.h serve/token_text.h serve/windows.h
  train/attend_over_ranks.h train/checkpoint/checkpoint_options.h train/data.h
  train/lr_schedule.h train/mesh.h train/optimizer_options.h train/parallelism.h train/recipe.h
  train/recipe_parts.h train/run_options.h train/step_metrics.h train/tensor_parallel_over_ranks.h train/trainer.h
  train/training_options.h)

# Each where its part was built.
set(armillary_mpi_headers comm/mpi.h)
set(armillary_nccl_headers comm/nccl.h)
set(armillary_c10d_headers comm/c10d.h)

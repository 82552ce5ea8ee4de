# The public headers, below armillary/: those that `cmake --install` installs. Whatever they include of ours is listed too
# (tests/install/install_test.py). A header that is not here may change or go without a word.

set(armillary_plan_headers version.h
  comm/array.h comm/collectives.h comm/communicator.h comm/local.h comm/peer_waits.h comm/pulse.h
  comm/reduce.h comm/solo.h comm/strided.h
  core/error.h core/small_vector.h
  plan/block_ids.h plan/blocks.h plan/degrees.h plan/fold.h plan/json.h plan/layout.h plan/lower_bound.h
  plan/mask.h plan/passes/lower.h plan/passes/replay.h plan/plan.h plan/problem.h plan/reach.h plan/runs.h
  plan/schedule.h plan/segments.h plan/strategies/grid.h plan/strategies/movement.h plan/strategies/presets.h
  plan/strategy.h plan/text.h plan/verify.h plan/verify_folded.h plan/visibility.h
  proof/digest.h proof/prove.h
  recorder/diagnosis.h recorder/process_state.h recorder/reader.h recorder/recorder.h
  report/measured.h report/report.h
  sim/cluster.h sim/compare.h sim/cost.h sim/curves.h sim/engine.h sim/memory.h sim/model_cost.h
  sim/step.h sim/timeline.h sim/topology.h sim/trace.h
  tune/advise.h tune/answer.h tune/automatic.h tune/candidate.h tune/explain.h tune/mesh.h tune/search.h)

# With libtorch.
set(armillary_torch_headers
  attention/attention_in_progress.h attention/functional.h attention/sequence_parallel_attention.h
  kernel/block_attention.h kernel/cpu_kernel.h kernel/dropout.h kernel/merge.h kernel/reference.h
  kernel/score.h
  runtime/bound_tensors.h runtime/compiled_program.h runtime/context.h runtime/device.h
  runtime/execution_pool.h runtime/executor.h runtime/gate.h runtime/recorded_ops.h runtime/stream_device.h
  runtime/zero_copy.h
  train/attend_over_ranks.h train/data.h train/host_info.h train/lr_schedule.h train/mesh.h
  train/models/attend.h train/models/decoder_options.h train/models/model.h train/models/model_options.h
  train/models/recompute.h train/models/registry.h train/recipe.h train/trainer.h)

# Each where its part was built.
set(armillary_mpi_headers comm/mpi.h)
set(armillary_nccl_headers comm/nccl.h)
set(armillary_c10d_headers comm/c10d.h)

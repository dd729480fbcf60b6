"""The baselines without a GPU: the column-major swap, both layouts of B, what the libraries are asked and answer."""

import ctypes
import dataclasses
import gc
import itertools
import pickle
import sys
import types
import weakref

import numpy as np
import pytest
import torch

from cudal2.bench.baselines import cublaslt, libraries
from cudal2.bench.baselines.baseline import BothLayouts, LibraryCall, NotSupportedError, TorchMatmul
from cudal2.bench.inputs import BufferSets
from cudal2.errors import EnvironmentProblemError
from cudal2.problem import Problem

SHAPES = [(3, 5, 7), (8, 8, 8), (1, 6, 4)]


def read_column_major(flat, shape):
    """A matrix as cuBLAS reads it: rows, columns, leading dimension."""
    rows, columns, leading = shape
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (flat.itemsize, leading * flat.itemsize))


@pytest.mark.parametrize(("sizes", "layout"), list(itertools.product(SHAPES, ("nn", "tn"))))
def test_swapped_column_major_product_is_the_row_major_one(sizes, layout):
    m, n, k = sizes
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(m, k)), rng.normal(size=(k, n))
    stored_b = np.ascontiguousarray(b if layout == "nn" else b.T)
    c = np.full((m, n), np.nan)
    view = cublaslt.column_major(Problem(m, n, k, layout=layout), layout)
    first = read_column_major(stored_b.ravel(), view.first)
    first = first.T if view.op_first else first
    second = read_column_major(a.ravel(), view.second)
    assert (view.m, view.n, view.k) == (first.shape[0], second.shape[1], second.shape[0])
    read_column_major(c.ravel(), view.out)[:] = first @ second
    np.testing.assert_allclose(c, a @ b, rtol=1e-12)


@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_both_layouts_hold_the_same_b_and_share_a_and_c(layout):
    sets = BufferSets(Problem(6, 10, 3, layout=layout), 4, "cpu")
    buffers = BothLayouts(sets)
    for index in range(4):
        assert torch.equal(buffers.b("nn", index), buffers.b("tn", index).t())
    own, other = (buffers.pointers(name) for name in (layout, "nn" if layout == "tn" else "tn"))
    assert [row[::2] for row in own] == [row[::2] for row in other], "A and C are the same memory"
    assert len({row[1] for row in (*own, *other)}) == 8, "eight different B"
    for index, (_, pointer, _) in enumerate(other):
        memory = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int16)), (30,))
        expected = sets.b(index).t().contiguous().view(torch.int16).numpy().ravel()
        np.testing.assert_array_equal(memory, expected)


def test_a_bound_call_gets_the_addresses_of_its_set():
    sets = BufferSets(Problem(8, 8, 8, layout="nn"), 3, "cpu")
    seen = []
    call = LibraryCall("cublas_nn", "fake", "nn", lambda *arguments: seen.append(arguments))
    contestant = call.on(BothLayouts(sets))
    for index in (2, 0):
        contestant.launch(index, 7)
    pointers = (sets.a_pointers, sets.b_pointers, sets.c_pointers)
    assert seen == [(*(int(row[index]) for row in pointers), 7) for index in (2, 0)]
    assert call.renamed("cublaslt_auto_nn", "of=3").on(BothLayouts(sets)).detail == "fake of=3"


@pytest.mark.parametrize(("layout", "acc"), list(itertools.product(("tn", "nn"), ("fp32", "fp16"))))
def test_torch_multiplies_what_the_problem_stores_and_records_its_flags(layout, acc):
    sets = BufferSets(Problem(4, 6, 8, acc, layout), 2, "cpu")
    baseline = TorchMatmul(sets.problem)
    contestant = baseline.on(BothLayouts(sets))
    for index in range(2):
        contestant.launch(index, 0)
        b = sets.b(index) if layout == "nn" else sets.b(index).t()
        torch.testing.assert_close(sets.c(index).float(), sets.a(index).float() @ b.float(), rtol=2e-3, atol=2e-2)
    wanted = acc == "fp16"
    assert f"allow_fp16_reduced_precision_reduction={wanted}" in contestant.detail
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction is wanted


@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_the_second_copy_of_b_lives_as_long_as_a_call_on_it(layout):
    """A graph knows addresses alone, and memory that was given back is another's, or unmapped."""
    sets = BufferSets(Problem(8, 16, 24, layout="tn"), 2, "cpu")
    buffers = BothLayouts(sets)
    held = weakref.ref(buffers)
    bound = LibraryCall("fake", "", layout, lambda *_: None).on(buffers)
    del buffers
    gc.collect()
    assert held() is not None
    del bound
    assert held() is None


def test_torch_multiplies_bf16_with_its_reduction_in_fp32():
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    sets = BufferSets(Problem(4, 6, 8, dtype="bf16"), 2, "cpu")
    contestant = TorchMatmul(sets.problem).on(BothLayouts(sets))
    contestant.launch(1, 0)
    assert sets.c(1).dtype is torch.bfloat16
    torch.testing.assert_close(sets.c(1).float(), sets.a(1).float() @ sets.b(1).float().t(), rtol=1e-2, atol=2e-2)
    assert "allow_bf16_reduced_precision_reduction=False" in contestant.detail
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False


def test_missing_bindings_name_the_command(monkeypatch):
    cublaslt.bindings.cache_clear()
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    with pytest.raises(EnvironmentProblemError, match="pip install nvmath-python"):
        cublaslt.bindings()
    cublaslt.bindings.cache_clear()


def test_scale_type_matches_the_compute_type_and_the_scalars():
    nvmath = pytest.importorskip("nvmath")
    compute, data = cublaslt.bindings()[0].ComputeType, nvmath.CudaDataType
    fp32, fp16 = cublaslt.PRECISIONS["fp32"], cublaslt.PRECISIONS["fp16"]
    assert (fp32.compute, fp32.scale, fp32.one.dtype) == (compute.COMPUTE_32F, data.CUDA_R_32F, np.float32)
    assert (fp16.compute, fp16.scale, fp16.one.dtype) == (compute.COMPUTE_16F, data.CUDA_R_16F, np.float16)
    assert cublaslt.ELEMENTS == {"fp16": data.CUDA_R_16F, "bf16": data.CUDA_R_16BF}


class FakeLtError(Exception):
    pass


ATTRIBUTES = ("ID", "TILE_ID", "SPLITK_NUM", "REDUCTION_SCHEME", "CTA_SWIZZLING", "CUSTOM_OPTION", "STAGES_ID",
              "INNER_SHAPE_ID", "CLUSTER_SHAPE_ID")  # fmt: skip


def algorithm_bytes(**values):
    return np.array([values.get(name, 0) for name in ATTRIBUTES], np.uint32).tobytes().ljust(64, b"\0")


def attributes_of(data):
    return dict(zip(ATTRIBUTES, np.frombuffer(data, np.uint32)[: len(ATTRIBUTES)].tolist(), strict=True))


class FakeLt:
    """cuBLASLt's bindings without the library: real enumerations and record layouts, calls written down.

    An algorithm's bytes hold its attributes one after the other, four bytes each. Algorithm 66 takes two tiles, any
    split and clusters of two; 9 takes no settings; 7 is listed but not for this GPU.
    """

    cuBLASLtError = FakeLtError
    capabilities = types.MappingProxyType(
        {"TILE_IDS": [15, 20], "STAGES_IDS": [35], "SPLITK_SUPPORT": [1], "REDUCTION_SCHEME_MASK": [7],
         "CUSTOM_OPTION_MAX": [1], "CTA_SWIZZLING_SUPPORT": [0]}
    )  # fmt: skip

    def __init__(self, real, found):
        for name in ("MatmulDescAttribute", "MatmulPreferenceAttribute", "MatmulAlgoConfigAttribute", "MatmulTile",
                     "MatmulStages", "MatmulInnerShape", "ClusterShape", "MatmulAlgoCapAttribute",
                     "matmul_heuristic_result_dtype", "get_matmul_algo_config_attribute_dtype",
                     "get_matmul_algo_cap_attribute_dtype"):  # fmt: skip
            setattr(self, name, getattr(real, name))
        self.found, self.set_values, self.launched, self.shapes = found, {}, [], []
        self.destroyed, self.refuses, self.lists_nothing = 0, False, False

    def create(self):
        return 1

    def get_version(self):
        return 130000

    def matmul_desc_create(self, compute, scale):
        self.kind = (compute, scale)
        return 2

    def matrix_layout_create(self, dtype, rows, columns, leading):
        self.shapes.append((dtype, rows, columns, leading))
        return 10 + len(self.shapes)

    def matmul_preference_create(self):
        return 3

    def _set(self, target, attribute, pointer, size):
        self.set_values[(target, attribute)] = int.from_bytes(ctypes.string_at(pointer, size), "little")

    matmul_desc_set_attribute = matmul_preference_set_attribute = _set

    def matmul_algo_get_heuristic(self, handle, desc, first, second, c, d, preference, count, results, found):
        if self.refuses:
            raise self.cuBLASLtError("status 15")
        rows = np.ctypeslib.as_array((ctypes.c_char * (96 * count)).from_address(results))
        rows = rows.view(self.matmul_heuristic_result_dtype)
        for index, state in enumerate(self.found[:count]):
            rows[index]["state"], rows[index]["workspace_size"] = state, 1000 + index
            data = algorithm_bytes(ID=66, TILE_ID=15, SPLITK_NUM=1 + index)
            rows[index]["algo"]["data_"] = np.frombuffer(data, np.uint64)
        ctypes.c_int.from_address(found).value = min(count, len(self.found))

    def matmul_algo_get_ids(self, handle, compute, scale, a, b, c, d, count):
        if self.lists_nothing:
            raise self.cuBLASLtError("status 14")
        assert (compute, scale) == self.kind and {a, b, c, d} == {shape[0] for shape in self.shapes} and count >= 64
        return (66, 7, 9, 9)

    def matmul_algo_init(self, handle, compute, scale, a, b, c, d, number, pointer):
        if number == 7:
            raise self.cuBLASLtError("status 8")
        ctypes.memmove(pointer, algorithm_bytes(ID=number), 64)

    def matmul_algo_cap_get_attribute(self, pointer, attribute, values, size, written):
        name = self.MatmulAlgoCapAttribute(attribute).name
        if ctypes.c_uint32.from_address(pointer).value != 66:
            raise self.cuBLASLtError("status 7")
        numbers = self.capabilities[name]
        ctypes.c_uint64.from_address(written).value = 4 * len(numbers)
        if size:
            assert size == 4 * len(numbers), name
            ctypes.memmove(values, (ctypes.c_uint32 * len(numbers))(*numbers), size)

    def matmul_algo_config_get_attribute(self, pointer, attribute, values, size, written):
        ctypes.memmove(values, pointer + 4 * attribute, size)

    def matmul_algo_config_set_attribute(self, pointer, attribute, values, size):
        ctypes.memmove(pointer + 4 * attribute, values, size)

    def matmul_algo_check(self, handle, desc, first, second, c, d, pointer, result):
        fields = attributes_of(ctypes.string_at(pointer, 64))
        if fields["INNER_SHAPE_ID"] or (fields["ID"] == 66 and fields["CLUSTER_SHAPE_ID"] not in (0, 3, 5)):
            raise self.cuBLASLtError("status 15")
        row = np.ctypeslib.as_array((ctypes.c_char * 96).from_address(result)).view(self.matmul_heuristic_result_dtype)
        row[0]["workspace_size"] = 4096 * (fields["SPLITK_NUM"] - 1)

    def matmul(self, *arguments):
        self.launched.append((*arguments, ctypes.string_at(arguments[-4], 64)))

    def _destroy(self, *_):
        self.destroyed += 1

    matrix_layout_destroy = matmul_desc_destroy = matmul_preference_destroy = destroy = _destroy


@pytest.fixture
def fake_lt(monkeypatch):
    pytest.importorskip("nvmath")
    fake = FakeLt(cublaslt.bindings()[1], found=[0, 5, 0])
    cublas = types.SimpleNamespace(
        create=lambda: 4, destroy=lambda handle: None, get_version=lambda handle: 130000, calls=[],
    )  # fmt: skip
    for name in ("set_stream", "set_workspace", "set_math_mode", "gemm_ex"):
        setattr(cublas, name, lambda *arguments, name=name: cublas.calls.append((name, *arguments)))
    for module in (cublaslt, libraries):
        monkeypatch.setattr(module, "bindings", lambda: (cublas, fake))
    return fake


@pytest.mark.parametrize(
    ("acc", "dtype", "kind", "element", "mask"),
    [("fp32", "fp16", (68, 0), 2, 2), ("fp16", "fp16", (64, 2), 2, 7), ("fp32", "bf16", (68, 0), 14, 2)],
)
def test_cublaslt_is_asked_for_the_leaderboards_precision(fake_lt, acc, dtype, kind, element, mask):
    vendor = libraries.VendorLibraries(Problem(64, 128, 32, acc, dtype=dtype), "cpu", 2**20, 100)
    calls = vendor.cublaslt("tn")
    names = fake_lt.MatmulPreferenceAttribute
    assert fake_lt.kind == kind
    assert {shape[0] for shape in fake_lt.shapes} == {element}
    assert list(vendor.enumerated()["tn"].near(calls)), "the types are those of the layouts"
    assert fake_lt.set_values[(3, int(names.MAX_WORKSPACE_BYTES))] == 2**20
    assert fake_lt.set_values[(3, int(names.REDUCTION_SCHEME_MASK))] == mask
    assert len(calls) == 2, "the answer marked unusable is left out"
    assert calls[0].name == "cublaslt_heuristic_tn" and "rank=0" in calls[0].detail and "rank=2" in calls[1].detail
    assert "workspace=1002" in calls[1].detail
    for call in (calls[0], vendor.cublaslt("tn")[0], calls[1]):
        call.enqueue(100, 200, 300, 9)
    splits = [attributes_of(launched[-1])["SPLITK_NUM"] for launched in fake_lt.launched]
    assert splits == [1, 1, 3], "every call launches its own algorithm, whatever was asked in between"
    arguments = fake_lt.launched[2][:-1]
    assert (arguments[3], arguments[5], arguments[8], arguments[10], arguments[-1]) == (200, 100, 300, 300, 9)
    assert arguments[-2] == 2**20
    vendor.close()
    assert fake_lt.destroyed == 2 + 2 * 5


@pytest.mark.parametrize(("acc", "schemes"), [("fp32", {0, 2}), ("fp16", {0, 1, 2, 4})])
def test_enumerated_calls_are_legal_new_and_reduce_in_the_leaderboards_precision(fake_lt, acc, schemes):
    vendor = libraries.VendorLibraries(Problem(64, 128, 320, acc), "cpu", 8192, 100)
    offered = vendor.cublaslt("tn")
    further = vendor.enumerated()
    assert list(further) == ["tn"], "only where the heuristic was asked"
    calls = list(further["tn"].near(offered[:1]))
    configurations = [call.algorithm.configuration for call in (*offered, *calls)]
    assert len(set(configurations)) == len(configurations)
    assert {configuration.id for configuration in configurations} == {66, 9}, "7 is listed, but does not initialise"
    assert {configuration.cluster for configuration in configurations if configuration.id == 66} == {0, 3, 5}
    assert {configuration.split[1] for configuration in configurations} == schemes
    # 3 x 4096 bytes is more workspace than there is; parts shorter than 64 are not tried.
    assert {configuration.split[0] for configuration in configurations[2:]} == {1, 2, 3}
    assert further["tn"].checked > len(calls)
    assert "rank=enumerated id=" in calls[0].detail and "inner_shape_id=0" in calls[0].detail
    call = next(call for call in calls if call.algorithm.configuration.cluster == 3)
    call.enqueue(100, 200, 300, 9)
    assert attributes_of(fake_lt.launched[-1][-1])["CLUSTER_SHAPE_ID"] == 3 and "SHAPE_2x1x1" in call.detail
    assert list(vendor.enumerated()["tn"].near(offered[:1])), "asked again, it begins again"
    fake_lt.lists_nothing = True
    assert vendor.enumerated() == {}, "a library that lists nothing keeps its own answers"


def test_a_chosen_call_is_rebuilt_from_plain_values_or_refused_with_a_reason(fake_lt):
    problem = Problem(64, 128, 320)
    vendor = libraries.VendorLibraries(problem, "cpu", 2**20, 100)
    offered = vendor.cublaslt("nn")
    chosen = next(vendor.enumerated()["nn"].near(offered)).renamed("cublaslt_auto_nn", "of=3")
    saved = pickle.loads(pickle.dumps(chosen.saved))
    restored = libraries.VendorLibraries(problem, "cpu", 2**20, 100).restore(saved)
    assert (restored.name, restored.detail, restored.layout) == (chosen.name, chosen.detail, "nn")
    assert restored.saved == chosen.saved
    for call in (chosen, restored):
        call.enqueue(100, 200, 300, 9)
    assert fake_lt.launched[0][-1] == fake_lt.launched[1][-1], "the same 64 bytes"
    with pytest.raises(NotSupportedError, match="chosen with cuBLASLt 120000; 130000 is loaded"):
        vendor.restore(dataclasses.replace(saved, library_version=120000))
    illegal = dataclasses.replace(saved.algorithm, data=algorithm_bytes(ID=66, INNER_SHAPE_ID=1))
    with pytest.raises(NotSupportedError, match="refuses the algorithm chosen as cublaslt_auto_nn"):
        vendor.restore(dataclasses.replace(saved, algorithm=illegal))
    assert vendor.cublas("nn").saved is None


def test_no_answer_is_a_reason_not_a_crash(fake_lt):
    fake_lt.found = [5]
    vendor = libraries.VendorLibraries(Problem(64, 64, 64), "cpu", 1024, 100)
    with pytest.raises(NotSupportedError, match="no algorithm for layout nn"):
        vendor.cublaslt("nn")
    fake_lt.refuses = True
    with pytest.raises(NotSupportedError, match="no algorithm for layout tn: status 15"):
        vendor.cublaslt("tn")


@pytest.mark.parametrize(("dtype", "element"), [("fp16", 2), ("bf16", 14)])
def test_cublas_sets_its_workspace_after_its_stream_and_forbids_narrow_partial_sums(fake_lt, dtype, element):
    vendor = libraries.VendorLibraries(Problem(64, 128, 32, dtype=dtype), "cpu", 1024, 100)
    call = vendor.cublas("nn")
    for stream in (5, 5, 6):
        call.enqueue(100, 200, 300, stream)
    calls = libraries.bindings()[0].calls
    assert [entry[0] for entry in calls[:4]] == ["set_stream", "set_workspace", "set_math_mode", "gemm_ex"]
    assert calls[2] == ("set_math_mode", 4, 16)
    assert [entry[0] for entry in calls].count("gemm_ex") == 3
    assert [entry[0] for entry in calls].count("set_stream") == 2
    gemm = calls[3]
    assert gemm[2:7] == (0, 0, 128, 64, 32) and gemm[8] == 200 and gemm[11] == 100 and gemm[15] == 300
    assert (gemm[9], gemm[12], gemm[16], gemm[18], call.arguments.element) == (*[element] * 3, 68, element)


@pytest.mark.parametrize("stored", ["tn", "nn"])
def test_every_sets_tensors_are_the_buffers_themselves(stored):
    sets = BufferSets(Problem(24, 40, 72, layout=stored), 5, "cpu", 0, guard_elements=200)
    buffers = BothLayouts(sets)
    for layout in ("tn", "nn"):
        for index, tensors in enumerate(buffers.tensors(layout)):
            expected = sets.a(index), buffers.b(layout, index), sets.c(index)
            assert [one.data_ptr() for one in tensors] == [one.data_ptr() for one in expected]
            assert [(one.shape, one.stride()) for one in tensors] == [(one.shape, one.stride()) for one in expected]
        assert len(buffers.tensors(layout)) == 5


def test_the_heuristic_is_asked_ahead_in_both_layouts_and_what_that_made_is_given_back(monkeypatch):
    seen = []

    class Matmul:
        def __init__(self, problem, layout, workspace_bytes):
            seen.append(f"{layout} {workspace_bytes}")

        def algorithms(self, count):
            seen.append(count)
            if len(seen) > 4:
                raise ValueError("nothing")

        def close(self):
            seen.append("close")

    monkeypatch.setattr(libraries, "LtMatmul", Matmul)
    monkeypatch.setattr(libraries.torch.cuda, "set_device", seen.append)
    with pytest.raises(ValueError, match="nothing"):
        libraries.wake(Problem(64, 64, 64), "cuda:1", 99, 7)
    assert seen == ["cuda:1", "tn 99", 7, "close", "nn 99", 7, "close"]

"""The GPU as the host of a foreign library uses it: driver calls only, so that its process is up at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

from cuda.bindings import driver as cuda

from cudal2.launch.driver import Graph, LaunchError, Module, check, ensure_context

#: NaN in fp16 and in bf16.
_NAN_BITS = 0x7FFF
_PER_THREAD_STREAM = 2
_THREADS, _BLOCKS = 256, 1_056
_VECTOR_BYTES = 16
#: Reads a buffer through L2, and keeps a stream busy; PTX, so that neither a compiler nor NVRTC is needed here.
_PTX = b"""
.version 7.8
.target sm_80
.address_size 64
.visible .entry read_through(.param .u64 start, .param .u64 vectors)
{
  .reg .pred %p<2>;
  .reg .b32 %r<9>;
  .reg .b64 %d<7>;
  ld.param.u64 %d0, [start];
  ld.param.u64 %d1, [vectors];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mad.lo.u32 %r4, %r0, %r1, %r2;
  cvt.u64.u32 %d3, %r4;
  mul.wide.u32 %d4, %r3, %r1;
  mov.u32 %r4, 0;
loop:
  setp.ge.u64 %p0, %d3, %d1;
  @%p0 bra done;
  shl.b64 %d5, %d3, 4;
  add.u64 %d5, %d0, %d5;
  ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d5];
  xor.b32 %r5, %r5, %r6;
  xor.b32 %r7, %r7, %r8;
  xor.b32 %r5, %r5, %r7;
  xor.b32 %r4, %r4, %r5;
  add.u64 %d3, %d3, %d4;
  bra loop;
done:
  setp.ne.u32 %p1, %r4, 0x5bd1e995;
  @%p1 bra end;
  st.global.u32 [%d0], %r4;
end:
  ret;
}
.visible .entry hold(.param .u64 nanoseconds)
{
  .reg .pred %p0;
  .reg .b64 %d<4>;
  ld.param.u64 %d0, [nanoseconds];
  mov.u64 %d1, %globaltimer;
wait:
  mov.u64 %d2, %globaltimer;
  sub.u64 %d3, %d2, %d1;
  setp.lt.u64 %p0, %d3, %d0;
  @%p0 bra wait;
  ret;
}
\0"""


class CudaDevice:
    """One GPU in this process.

    Args:
        device_index: Among those this process sees.
        flush_bytes: What is read through L2 before every timed replay.
        torch: Whether the library works on torch's tensors: torch is loaded, and its current stream is ours.
    """

    def __init__(self, device_index: int, flush_bytes: int, torch: bool) -> None:
        """Makes the context, and the symbols of the driver known to what is loaded later."""
        if torch:
            _enter_torch(device_index)
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        ensure_context(device_index)
        # Blocking, so that kernels on the legacy default stream keep their place in the queue.
        self.stream = _PER_THREAD_STREAM if torch else int(check(cuda.cuStreamCreate(0), "cuStreamCreate"))
        self._read = Module(_PTX, "read_through", 0)
        self._hold = Module(_PTX, "hold", 0)
        self._vectors = max(1, flush_bytes // _VECTOR_BYTES)
        self._flush = self.allocate(self._vectors * _VECTOR_BYTES)
        check(cuda.cuMemsetD32(self._flush, 0, self._vectors * 4), "cuMemsetD32")
        self._start, self._end = (check(cuda.cuEventCreate(0), "cuEventCreate") for _ in range(2))
        self._graph: Graph | None = None
        self._persisting_bytes = _persisting_bytes()

    def open(self, handle: str) -> int:
        """Maps an allocation of another process by its IPC handle in hexadecimal."""
        ipc = cuda.CUipcMemHandle()
        ctypes.memmove(int(ipc.getPtr()), bytes.fromhex(handle), len(handle) // 2)
        lazily = cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(check(cuda.cuIpcOpenMemHandle(ipc, int(lazily)), "cuIpcOpenMemHandle"))

    def allocate(self, size_bytes: int) -> int:
        """Device memory of this process."""
        return int(check(cuda.cuMemAlloc(max(1, size_bytes)), f"cuMemAlloc of {size_bytes} bytes"))

    def hold(self, milliseconds: float) -> None:
        """Keeps the stream busy so long."""
        self._launch(self._hold, 1, 1, (int(milliseconds * 1e6),))

    def poison(self, pointer: int, elements: int) -> None:
        """Enqueues NaN."""
        check(cuda.cuMemsetD16Async(pointer, _NAN_BITS, elements, self.stream), "cuMemsetD16Async")

    def wait(self) -> None:
        """Waits for all streams of the context."""
        check(cuda.cuCtxSynchronize(), "the kernel")

    def capture(self, enqueue: Callable[[], None]) -> None:
        """Captures strictly: what allocates or synchronises cannot be in a graph."""
        if self._graph is not None:
            self._graph.destroy()
            self._graph = None
        self._graph = Graph(self.stream, enqueue, strict=True)

    def run(self) -> None:
        """Enqueues one replay of the graph."""
        if self._graph is not None:
            self._graph.launch(self.stream)

    def time_ms(self, enqueue: Callable[[], None]) -> float:
        """Between two events, behind a pass through L2 that hides the submission of a graph."""
        self._launch(self._read, _BLOCKS, _THREADS, (self._flush, self._vectors))
        check(cuda.cuEventRecord(self._start, self.stream), "cuEventRecord")
        enqueue()
        check(cuda.cuEventRecord(self._end, self.stream), "cuEventRecord")
        check(cuda.cuEventSynchronize(self._end), "the kernel")
        return float(check(cuda.cuEventElapsedTime(self._start, self._end), "cuEventElapsedTime"))

    def left_behind(self) -> str:
        """Another share of L2 set aside, be it more or less, or a window of persisting accesses on the stream."""
        if (now := _persisting_bytes()) != self._persisting_bytes:
            return f"the persisting-L2 limit at {now} bytes, which was {self._persisting_bytes}"
        window = cuda.CUstreamAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        try:
            value = check(cuda.cuStreamGetAttribute(self.stream, window), "cuStreamGetAttribute")
        except LaunchError:
            return ""  # a stream handle that has no attributes
        size_bytes = int(value.accessPolicyWindow.num_bytes)
        return f"a persisting-L2 window of {size_bytes} bytes on its stream" if size_bytes else ""

    def _launch(self, module: Module, blocks: int, threads: int, values: tuple[int, ...]) -> None:
        words = (ctypes.c_uint64 * len(values))(*values)
        first = ctypes.addressof(words)
        pointers = (ctypes.c_void_p * len(values))(*(first + 8 * index for index in range(len(values))))
        sizes = (blocks, 1, 1, threads, 1, 1)
        check(
            cuda.cuLaunchKernel(module.function, *sizes, 0, self.stream, ctypes.addressof(pointers), 0),
            "cuLaunchKernel",
        )


def _persisting_bytes() -> int:
    return int(check(cuda.cuCtxGetLimit(cuda.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE), "cuCtxGetLimit"))


def _enter_torch(device_index: int) -> None:
    """Loads torch, which is this process's only if its library wants tensors."""
    torch: Any = import_module("torch")
    torch.cuda.set_device(device_index)
    torch.cuda.init()
    torch.cuda.set_stream(torch.cuda.ExternalStream(_PER_THREAD_STREAM, device=device_index))

"""What a tool is known not to be up to: some of its reports about some launches say nothing of the kernel."""

from __future__ import annotations

from collections.abc import Sequence

from cudal2.bench.sanitize.launcher import Case
from cudal2.bench.sanitize.tool import Finding
from cudal2.space.families import family_of

#: CTAs of the largest cluster that every part of an architecture can schedule (CUDA C++ Programming Guide).
PORTABLE_CLUSTER_CTAS = 8
#: CUDA 13.0's on an H200, in 9 of 30 such launches of a first cover (clusters of 14 and 16 CTAs) and, in the shipped
#: records, 4 of 12 of clusters of 14 and 16: more of them than GPCs, and room for two CTAs on a multiprocessor. It
#: calls the first arrival on a barrier just made one without a wait (the offset is that of the first expect_tx), and
#: the launch faults, which is clean and right by itself and under memcheck. Once it also missed what had made a
#: barrier: 64x32x64_s2_coop1_c2x1_k7_direct_o3_n4l128 (14 CTAs, 25,856 bytes each), 52 times at 0xf90, which nvdisasm
#: of the very cubin of the record (7512be3f7e2a32a1) shows as SYNCS.ARRIVE of a consumer that gives a stage back to a
#: peer, behind its wait for the stage at 0xd00, the four SYNCS.EXCH that make the barriers and the cluster's barrier;
#: beside it "Missing wait" at 0x2480, the first expect_tx. That launch, too, is clean and right under memcheck.
_LARGE_CLUSTERS = "synccheck mixes up the barriers of clusters above 8 CTAs where several share a multiprocessor"
_THEIR_REPORTS = (
    "Barrier error detected. Missing wait",
    "Barrier error detected. Missing init",
    "cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS",
)


def doubtful(tool: str, case: Case) -> bool:
    """Whether a tool may not be up to a launch."""
    cluster_ctas = family_of(case.config).geometry.cluster_size(case.config)
    return tool == "synccheck" and cluster_ctas > PORTABLE_CLUSTER_CTAS


def limit(tool: str, case: Case, findings: Sequence[Finding]) -> str:
    """Why findings are the tool's fault; empty if there are none, or any that is not known to be."""
    known = bool(findings) and all(finding.text.startswith(_THEIR_REPORTS) for finding in findings)
    return _LARGE_CLUSTERS if known and doubtful(tool, case) else ""

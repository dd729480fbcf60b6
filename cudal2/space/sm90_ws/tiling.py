"""How a problem falls into tiles, clusters and waves: what several rules of ``sm90_ws`` reckon with, elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem
from cudal2.space.rule import Choice, ceil_div

#: The axes that make cluster tiles.
TILING = ("tile_m", "tile_n", "cluster_m", "cluster_n")


def cluster_split(choice: Choice) -> Any:
    """Slices of K in a cluster: ``geometry.cluster_split`` without a call for each configuration."""
    return np.where(np.equal(choice.split_via, "cluster"), choice.split_k, 1)


def tiles_m(choice: Choice, problem: Problem) -> Any:
    """Cluster tiles along M."""
    return ceil_div(problem.m, choice.tile_m * choice.cluster_m)


def tiles_n(choice: Choice, problem: Problem) -> Any:
    """Cluster tiles along N."""
    return ceil_div(problem.n, choice.tile_n * choice.cluster_n)


def clusters(choice: Choice, problem: Problem) -> Any:
    """Cluster tiles of the problem."""
    return tiles_m(choice, problem) * tiles_n(choice, problem)


def cluster_ctas(choice: Choice) -> Any:
    """CTAs of a cluster."""
    return choice.cluster_m * choice.cluster_n * cluster_split(choice)


def ctas(choice: Choice, problem: Problem) -> Any:
    """CTAs of a launch that is not persistent, slices of K included."""
    return clusters(choice, problem) * choice.cluster_m * choice.cluster_n * choice.split_k


def wave(choice: Choice, arch: Arch) -> Any:
    """Clusters of one wave, at least one."""
    return np.maximum(1, arch.sm_count * choice.ctas_per_sm // cluster_ctas(choice))

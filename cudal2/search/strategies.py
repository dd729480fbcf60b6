"""The strategies by name; a trained policy joins them through ``cudal2.rl.rank``."""

from __future__ import annotations

from cudal2.search.analytic import analytic_search
from cudal2.search.base import Strategy
from cudal2.search.beam import beam_search
from cudal2.search.exhaustive import exhaustive_search
from cudal2.search.hill_climb import hill_climb
from cudal2.search.random_search import random_search

STRATEGIES: dict[str, Strategy] = {
    "random": random_search,
    "hill_climb": hill_climb,
    "beam": beam_search,
    "analytic": analytic_search,
    "exhaustive": exhaustive_search,
}

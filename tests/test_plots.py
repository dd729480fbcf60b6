"""What the pictures of the finals say: data, labels and lines of each figure, and that no text runs into another."""

import functools
from itertools import combinations

import numpy as np
import pytest
from fabricated_finals import final_rows, grid_finals
from matplotlib.text import Text

from cudal2.floor import BURST, SUSTAINED
from cudal2.problem import Problem
from cudal2.report import plots
from cudal2.report.board import boards
from cudal2.report.canvas import operations
from cudal2.report.heatmap import heatmap_figure

PICTURES = ["heatmap", "ecdf", "floor", "flops", "roofline"]


@functools.cache
def made_up_board(count):
    """So many shapes with wins, ties, losses and unserved ones, and every optional contestant."""
    return boards(grid_finals(count, pdls=(True,)))[0]


@functools.cache
def figures(count=32):
    return dict(plots.board_figures(made_up_board(count)))


@pytest.fixture(scope="module")
def board():
    return made_up_board(32)


@pytest.fixture(scope="module")
def shapes(board):
    return board.standing().shapes


def test_the_heat_map_has_a_panel_per_k_and_a_colour_per_measured_shape(board, shapes):
    figure = figures()["heatmap"]
    panels = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("K = ")]
    ks = sorted({final.problem.k for final in board.finals})
    assert [axes.get_title(loc="left") for axes in panels] == [f"K = {k}" for k in ks]
    cells = np.concatenate([np.ma.filled(axes.images[0].get_array(), np.nan).ravel() for axes in panels])
    assert sorted(np.exp(cells[np.isfinite(cells)])) == pytest.approx([shape.ratio for shape in shapes])
    norm = panels[0].images[0].norm
    assert norm(0.0) == 0.5 and norm.vmin == -norm.vmax, "1.0 is the centre of the colours"
    numbers = [int(text.get_text()) for axes in panels for text in axes.texts]
    assert sorted(numbers) == sorted(round(100 * shape.ratio - 100) for shape in shapes)


def test_the_heat_map_tells_unmeasured_from_unserved_from_equal():
    equal = boards(final_rows("64_128_64", 2.0, {"cublaslt_auto": 2.0}))[0].standing().shapes
    figure = heatmap_figure(equal, "made-up data", [Problem.parse("128_64_64")])
    panel = figure.axes[0]
    places = {points.get_label(): points.get_offsets().tolist() for points in panel.collections}
    # Columns are N, rows are M, of 64 and 128 each.
    assert places == {"not measured": [[0, 0], [0, 1], [1, 1]], "unserved": [[0, 1]]}
    assert [patch.get_xy() for patch in panel.patches] == [(0.5, -0.5)], "a cell at 1.0 has an edge"


def test_the_distribution_has_a_curve_per_contestant_that_counts_shapes(board):
    axes = figures()["ecdf"].axes[0]
    curves = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert [label.partition(" (")[0] for label in curves] == [
        "cuBLASLt-AutoTuning", "cuBLASLt-heuristic", "cuBLAS", "torch.matmul", "QuACK", "Triton", "CUDA-L2",
        "foreign:fast_gemm",
    ]  # fmt: skip
    for line, (label, standing) in zip(curves.values(), zip(curves, board.standings, strict=True), strict=True):
        found = standing.overall
        assert label.endswith(f"({1 - found.faster:.0%} not faster, n = {found.n})")
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        ratios = np.array([0.0] * found.unserved + [shape.ratio for shape in standing.shapes])
        at_one = y[x <= 1.0][-1]
        assert at_one == pytest.approx(np.mean(ratios <= 1.0)) == pytest.approx(1 - found.faster)
        assert y[-1] == 1.0 and x[-1] == ratios.max()
    looks = {(line.get_color(), str(line._dash_pattern)) for line in curves.values()}
    assert len(looks) == len(curves), "each curve is told apart by colour and dash"


@pytest.mark.parametrize(("name", "at"), [("ecdf", 0), ("floor", 0), ("flops", 1)])
def test_there_is_a_line_where_the_two_are_equal(board, name, at):
    axes = figures()[name].axes[at]
    lines = [line.get_xdata() if name == "ecdf" else line.get_ydata() for line in axes.lines]
    assert [1.0, 1.0] in [list(line) for line in lines]


def test_absolute_rates_stand_above_the_ratios_of_the_same_shapes(board, shapes):
    rates, ratios = figures()["flops"].axes
    work = sorted(shape.problem.flops for shape in shapes)
    other, ours = (points.get_offsets() for points in rates.collections[1:])
    assert sorted(ours[:, 0]) == sorted(other[:, 0]) == work
    assert sorted(ours[:, 1]) == pytest.approx(
        sorted(shape.problem.flops / shape.ours.median_us / 1e6 for shape in shapes)
    )
    drawn = sorted(x for container in ratios.containers for x in container.lines[0].get_xdata())
    assert drawn == work and ratios.get_xscale() == "log"
    bars = sum(len(container.lines[2][0].get_segments()) for container in ratios.containers)
    assert bars == len(shapes), "every ratio has its interval"
    (crosses,) = (line for line in ratios.lines if line.get_marker() == "x")
    unserved = [final.problem.flops for final in board.finals if final.ours is None]
    assert list(crosses.get_xdata()) == unserved and crosses.get_label() == f"unserved ({len(unserved)})"
    assert operations(2e9) == "2 GFLOP"


def test_the_roofline_has_both_ceilings_and_both_contestants(board, shapes):
    axes = figures()["roofline"].axes[0]
    tops = sorted(line.get_ydata().max() for line in axes.lines)
    assert tops == pytest.approx([SUSTAINED.tensor_flops / 1e12, BURST.tensor_flops / 1e12])
    other, ours = (points.get_offsets() for points in axes.collections[1:])
    assert list(ours[:, 0]) == pytest.approx([shape.problem.flops / shape.problem.bytes_min for shape in shapes])
    assert list(ours[:, 1] / other[:, 1]) == pytest.approx(
        [shape.other.median_us / shape.ours.median_us for shape in shapes]
    )


def test_verdicts_differ_by_more_than_colour(board):
    axes = figures()["floor"].axes[0]
    markers = {container.get_label().split()[0]: container.lines[0].get_marker() for container in axes.containers}
    assert set(markers) == {"win", "tie", "loss"} and len(set(markers.values())) == 3


@pytest.mark.parametrize("name", PICTURES)
def test_axes_say_what_they_measure_and_in_what(board, name):
    labels = [text for axes in figures()[name].axes for text in (axes.get_xlabel(), axes.get_ylabel()) if text]
    wanted = {
        "heatmap": {"M", "N", "speed-up (1 = equal)"},
        "ecdf": {"speed-up (1 = equal)", "share of shapes at most this fast"},
        "floor": {"floor of the shape", "speed-up (1 = equal)"},
        "flops": {"achieved TFLOP/s", "speed-up (1 = equal)", "work of the shape, 2 M N K"},
        "roofline": {"achieved TFLOP/s", "arithmetic intensity, FLOP per byte of device memory"},
    }
    assert set(labels) == wanted[name]


def drawn_texts(figure):
    """The texts of the figure without tick labels outside their axis."""
    hidden = set()
    figure.draw_without_rendering()
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim()))):
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    renderer = figure.canvas.get_renderer()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text not in hidden]


@pytest.mark.parametrize("count", [4, 32, 96])
@pytest.mark.parametrize("name", PICTURES)
def test_no_text_runs_into_another_or_off_the_figure(count, name):
    figure = figures(count)[name]
    texts = drawn_texts(figure)
    width, height = figure.canvas.get_width_height()
    for text, box in texts:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, f"'{text}' is cut off"
    for (one, box), (other, its_box) in combinations(texts, 2):
        # Boxes hold a margin around the letters: a pixel of one inside the other is no collision.
        across = min(box.x1, its_box.x1) - max(box.x0, its_box.x0)
        down = min(box.y1, its_box.y1) - max(box.y0, its_box.y0)
        assert across <= 1 or down <= 1, f"'{one}' runs into '{other}'"


def test_a_picture_says_in_its_file_what_it_shows(tmp_path):
    from PIL import Image

    for path in plots.save_board(made_up_board(4), tmp_path)[1:3]:
        with Image.open(path) as image:
            assert image.text["Description"].startswith("Offline, fp32 accumulation, our PDL on. ")
            assert image.width >= 900


def test_one_picture_as_svg_is_the_same_twice(shapes, tmp_path):
    paths = [plots.save_speedups(shapes, "made-up data", tmp_path / name) for name in ("a.svg", "b.svg")]
    assert paths[0].read_bytes() == paths[1].read_bytes()

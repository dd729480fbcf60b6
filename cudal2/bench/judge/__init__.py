"""Candidates, baselines and foreign kernels on one problem: checked, selected, judged in fresh processes."""

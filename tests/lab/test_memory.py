import resource

import torch

from bayesmooth.lab.memory import keep_freed_memory


def faults_of(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        torch.ones(1_000_000).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_memory_that_a_step_frees_is_there_for_the_next_one():
    keep_freed_memory()
    faults_of(3)
    assert faults_of(20) < 1000  # 4 MB in pages of 4 KB would be 1,000 a step

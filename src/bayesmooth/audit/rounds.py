"""Another round: what was decided is learned from and not asked again, and the rest is ranked anew."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesmooth.audit.decisions import Decision, apply_decisions, read_decisions, rewrite_sets
from bayesmooth.audit.settings import Settings
from bayesmooth.audit.sources import DEFAULT, Network, Subject
from bayesmooth.audit.table import Audit
from bayesmooth.audit.tags import Vocabulary
from bayesmooth.data.labels import encode
from bayesmooth.errors import InputError

Array = NDArray[Any]


def use_decisions(
    subject: Subject, path: str | Path, settings: Settings = DEFAULT
) -> tuple[Subject, Array]:
    """The subject with its corrected labels, and which of its examples were decided on; `skip` is no decision."""
    examples = subject.examples
    if examples is None:
        raise InputError("decisions: batches have no ids; give the data as an Examples")
    names: Sequence[str] = examples.class_names
    ids = examples.ids or tuple(map(str, range(len(examples))))
    given = [names[label] for label in examples.labels.tolist()]
    decisions: Sequence[Decision] = read_decisions(path)
    if settings.tagged:
        decisions, names = rewrite_sets(decisions, Vocabulary.of(names, settings), names)
    corrected = apply_decisions(ids, given, decisions, names)
    decided = {row.id for row in decisions if row.decision != "skip"}
    labels = encode(corrected.labels, names, str(path))
    examples = replace(examples, labels=torch.as_tensor(labels), class_names=tuple(names))
    known = np.array([id in decided for id in ids])
    if isinstance(subject, Network):
        return replace(subject, examples=examples, data=examples), known
    return replace(subject, examples=examples), known


def rank_last(made: Audit, decided: Array) -> Audit:
    """The table with the decided labels at the end: none of them is contradicted any more."""
    lowest = min(float(made.disagreement.min()), made.disagreement_threshold)
    unclear = (made.ambiguity >= made.ambiguity_threshold).astype(made.quadrant.dtype)
    own = made.given_probability
    note = f"{int(decided.sum()):,} labels are decided and not asked again"
    return replace(
        made,
        disagreement=np.where(decided, lowest, made.disagreement),
        suggested=np.where(decided, made.given, made.suggested),
        suggested_probability=np.where(decided, own, made.suggested_probability),
        quadrant=np.where(decided, unclear, made.quadrant),  # clear or ambiguous
        summary={**made.summary, "notes": [*made.summary["notes"], note]},
    )

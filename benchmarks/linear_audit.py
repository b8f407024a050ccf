# ruff: noqa
# mypy: ignore-errors
"""A linear model with and without the labels that the audit contradicts, development pool; written for the code of commit 99b1eab."""

import sys, json, torch
from torch.nn.functional import cross_entropy

torch.set_num_threads(1)
from bayesmooth.data import Source, Labels
from bayesmooth.audit.predictors import predict_embedded
from bayesmooth.fitting.linear import *
from bayesmooth.fitting.linear import leave_out, measure
from benchmarks.training_tasks import DEVELOPMENT, problem
import statistics as st

VECTOR = ("head", "mlp", "mlp+bn", "mlp+ln")


def xe_soft(rows, target, precision, start, steps=100):
    w = start.clone().requires_grad_()
    o = torch.optim.LBFGS([w], max_iter=steps, line_search_fn="strong_wolfe")

    def c():
        o.zero_grad()
        l = cross_entropy(rows @ w, target) + 0.5 * precision * w[:-1].square().sum() / len(rows)
        l.backward()
        return l

    o.step(c)
    return w.detach()


res = {}
for seed in (0, 1):
    for cell in DEVELOPMENT:
        if cell.network not in VECTOR:
            continue
        d = problem(cell, seed)
        x = torch.cat([d.inputs, d.held_inputs]).flatten(1).float()
        y = torch.cat([d.labels, d.held_labels])
        K = d.model(0)(d.inputs[:2]).shape[1]
        P = predict_embedded(
            Source(x, Labels(y, tuple(map(str, range(K)))), ids=tuple(map(str, range(len(y)))), name="x"), True
        )
        sugg = torch.as_tensor(P.judge()["suggested"])
        keep = sugg == y
        q = P.probabilities.float()
        mean, std = x.mean(0), x.std(0) + 1e-6
        R = add_bias((x - mean) / std)
        T = add_bias((d.test_inputs.flatten(1).float() - mean) / std)
        row = {}
        fold = torch.arange(len(R)) % FOLDS

        def audit_keep(idx):
            P_ = predict_embedded(
                Source(
                    x[idx], Labels(y[idx], tuple(map(str, range(K)))), ids=tuple(map(str, range(len(idx)))), name="x"
                ),
                True,
            )
            return torch.as_tensor(P_.judge()["suggested"]) == y[idx]

        fair = {}
        for part in range(FOLDS):
            idx = (fold != part).nonzero()[:, 0]
            m = torch.zeros(len(R), dtype=torch.bool)
            m[idx[audit_keep(idx)]] = True
            fair[part] = m
        for name, k in (("given", torch.ones_like(keep)), ("drop", keep)):
            # precision by left-out accuracy of ALL given labels, trained on kept rows of other folds
            fold = torch.arange(len(R)) % FOLDS
            logits = torch.zeros(len(PRECISIONS), len(R), K)
            for part in range(FOLDS):
                w = torch.zeros(R.shape[1], K)
                tr = (fold != part) & (k if name == "given" else fair[part])
                te = fold == part
                for i in reversed(range(len(PRECISIONS))):
                    w = minimise(R[tr], y[tr], PRECISIONS[i], w, 100)
                    logits[i, te] = R[te] @ w
            best = max(range(len(PRECISIONS)), key=lambda i: measure(logits[i], y))
            a, l = measure(logits[best], y)
            if name == "given":
                right = logits[best].argmax(1) == y
            else:
                r2 = logits[best].argmax(1) == y
                up = int((r2 & ~right).sum())
                down = int((right & ~r2).sum())
            for nm, b in (("", best),):
                w = minimise(R[k], y[k], PRECISIONS[b], torch.zeros(R.shape[1], K), 100)
                row[name + nm] = (
                    100 * float(((T @ w).argmax(1) == d.test_labels).double().mean()),
                    float(cross_entropy(T @ w, d.test_labels)),
                    a,
                    len(y),
                )
        # soft
        for pr in ():
            w = xe_soft(R, q, pr, torch.zeros(R.shape[1], K))
            row["soft%g" % pr] = (
                100 * float(((T @ w).argmax(1) == d.test_labels).double().mean()),
                float(cross_entropy(T @ w, d.test_labels)),
                0,
                0,
            )
        g, dr = row["given"], row["drop"]
        row["choose"] = dr if dr[2] > g[2] else g
        row["choose-se"] = dr if up - down > (up + down) ** 0.5 else g
        row["choose-2se"] = dr if up - down > 2 * (up + down) ** 0.5 else g
        res[str(cell), seed] = row
        print(
            str(cell)[:45],
            seed,
            round(1 - float(keep.double().mean()), 2),
            {k: (round(v[0], 1), round(v[1], 2), round(v[2], 3)) for k, v in row.items()},
            flush=True,
        )
for kind in (False, True):
    for v in next(iter(res.values())):
        c = [r[v][0] - r["given"][0] for k, r in res.items() if (" clean " in k[0]) == kind]
        n = [r[v][1] - r["given"][1] for k, r in res.items() if (" clean " in k[0]) == kind]
        print(
            "clean" if kind else "wrong",
            v,
            round(st.mean(c), 2),
            "±",
            round(st.stdev(c) / len(c) ** 0.5, 2),
            round(st.mean(n), 3),
            len(c),
        )

# ruff: noqa
# mypy: ignore-errors
"""The audit as one more teacher of `fit`, on the development pool; written for the code of commit 8b56659.

BAYESMOOTH_OUT=folder python benchmarks/fit_audit.py SEEDS NETWORKS-TO-SKIP VARIANTS   # of fit, (raw|pen|flat)-(auto|autos)[T|M]
raw: rows of numbers are their own features, pen: what the last linear layer sees, flat: pixels. auto: the audit's share by the likelihood of
held-out labels, s: half of the way to one half. T: the audit's transitions, M: whichever of these and of a symmetric matrix is likelier.
"""

import sys, json, time, torch, glob, os
from pathlib import Path
from dataclasses import replace
from torch import nn
from torch.nn.functional import cross_entropy

torch.set_num_threads(1)
import bayesmooth.optim.choose as C
from bayesmooth.data import Source, Labels
from bayesmooth.audit.predictors import predict_embedded
from bayesmooth.audit.predictions import predict_true_classes
from bayesmooth.optim.predicted import estimate_errors, RATES, TEMPERATURES
from benchmarks.training import GRIDS, predict
from benchmarks.training_tasks import DEVELOPMENT, problem

orig = C.learn_predictions


def audit_rows(rows, labels, K):
    src = Source(
        rows.flatten(1).float(),
        Labels(labels, tuple(map(str, range(K)))),
        ids=tuple(map(str, range(len(labels)))),
        name="x",
    )
    P = predict_embedded(src, True)
    return P.probabilities.float().clamp_min(1e-9), P.transitions.float(), P.informative


@torch.no_grad()
def penultimate(model, batches):
    model.eval()
    found = []
    for x, _ in batches:
        kept = {}
        hooks = [
            m.register_forward_hook(lambda m, i, o: kept.__setitem__(m, (i[0], o)))
            for m in model.modules()
            if isinstance(m, nn.Linear)
        ]
        z = model(x)
        for h in hooks:
            h.remove()
        own = [i for i, o in kept.values() if o.data_ptr() == z.data_ptr()]
        if not own:
            return None
        found.append(own[-1])
    return torch.cat(found)


def loglik(logp, y, T=None, w=None):
    K = logp.shape[-1]
    out = []
    for t in TEMPERATURES:
        s = (logp / t).softmax(-1)
        if T is not None:
            out.append((s @ T).gather(-1, y[:, None]).double().clamp_min(1e-9).log().sum()[None])
        else:
            r = torch.tensor([r for r in RATES if r < 1 - 1 / K], dtype=torch.float64)
            right = s.gather(-1, y[:, None]).double()
            out.append(((1 - r) * right + r * (1 - right) / max(K - 1, 1)).clamp_min(1e-9).log().sum(0))
    return torch.stack(out)  # temps x rates


def make(cell, seed, variant, cache):
    d = problem(cell, seed)

    def learn(plan, teachers, start, *students, quiet, everything=False):
        path = start.path.with_stem(f"{start.path.stem}-predicted")
        student = C.Trial(start.setting, path, "predicted", start.path, everything)
        held = C.read_in_order(plan.held)
        train = C.read_in_order(plan.loader)
        y = torch.cat([C.take_labels(b) for b in held])
        yt = torch.cat([C.take_labels(b) for b in train])
        unseen, known = (C.average_predictions(plan, teachers, students, b) for b in (held, train))
        K = unseen.shape[1]
        feat, _, how = variant.partition("-")
        if ("q", feat) not in cache:
            vec = d.inputs.ndim == 2 and d.inputs.is_floating_point()
            if feat == "raw" and not vec:
                feat_ = "pen"
            else:
                feat_ = feat
            if feat_ == "flat" and not d.inputs.is_floating_point():
                feat_ = "pen"
            if feat_ == "flat" and d.inputs.ndim == 3:
                feat_ = "pen"
            if feat_ in ("raw", "flat"):
                rows = torch.cat([d.inputs, d.held_inputs])
            else:
                m = plan.make_model()
                m.load_state_dict(start_of(teachers).load()["best"]["model"])
                rows = [penultimate(m, train), penultimate(m, held)]
                rows = None if rows[0] is None else torch.cat(rows)
            if rows is None:
                cache["q", feat] = None
            else:
                t = time.process_time()
                try:
                    cache["q", feat] = audit_rows(rows, torch.cat([yt, y]), K)
                except Exception as e:
                    print("audit failed", e)
                    cache["q", feat] = None
        a = cache["q", feat]
        if a is None or variant == "fit":
            a = None
        w = None
        T = None
        if a is not None:
            q, T, info = a
            qk, qh = q[: len(yt)], q[len(yt) :]
            if "T" in how and "M" not in how:
                unseen = predict_true_classes(unseen, T).clamp_min(1e-9)
                known = predict_true_classes(known, T).clamp_min(1e-9)
            ws = torch.linspace(0, 1, 9).tolist() if "auto" in how else [float(how.strip("TshM"))]
            Tl = T if "T" in how else None
            if "M" in how:
                qs = predict_true_classes(unseen, T).clamp_min(1e-9)
                both = []
                for p_, T_ in ((unseen, None), (qs, T)):
                    l = torch.stack(
                        [
                            (lambda a: a.flatten().logsumexp(0) - __import__("math").log(a.numel()))(
                                loglik(((1 - v) * p_ + v * qh).log(), y, T_)
                            )
                            for v in ws
                        ]
                    ).double()
                    both.append(float(l.logsumexp(0)))
                cache["lead"] = both[1] - both[0]
                if both[1] > both[0]:
                    unseen = qs
                    known = predict_true_classes(known, T).clamp_min(1e-9)
                    Tl = T
                    how = how + "T"
            lls = torch.stack(
                [loglik(((1 - v) * unseen + v * qh).log(), y, Tl).flatten().logsumexp(0) for v in ws]
            ).double()
            w = float((lls.softmax(0) * torch.tensor(ws, dtype=torch.float64)).sum())
            if "s" in how:
                w = (w + 0.5) / 2
            unseen = ((1 - w) * unseen + w * qh).clamp_min(1e-9)
            known = ((1 - w) * known + w * qk).clamp_min(1e-9)
            cache["w"] = w
        if T is not None and "T" in how:
            ll = loglik(unseen.log(), y, T).flatten()
            wt = ll.softmax(0).float().tolist()
            pred = lambda lp: torch.stack([a_ * (lp / t).softmax(-1) for a_, t in zip(wt, TEMPERATURES)]).sum(0)
            labels = [pred(known.log())]
            if everything:
                both = pred(unseen.log()) * T.T[y]
                labels.append(both / both.sum(1, keepdim=True).clamp_min(1e-9))
        else:
            e = estimate_errors(unseen.log(), y)
            labels = [e.predict(known.log())] + [e.correct(unseen.log(), y)] * everything
        loader = C.join(plan.loader, plan.held) if everything else plan.loader
        loader = C.replace_labels(loader, torch.cat(labels))
        short = replace(plan, loader=loader, steps=max(round(C.STUDY * plan.steps), 1))
        C.advance_all(short, [student], C.PARTS, jobs=1, quiet=quiet)
        return student

    return learn


def start_of(teachers):
    return teachers[0]


out = Path(os.environ["BAYESMOOTH_OUT"]) / "audit.jsonl"
done = (
    {(r["cell"], r["seed"], r["variant"]) for r in map(json.loads, out.read_text().splitlines())}
    if out.exists()
    else set()
)
seeds = [int(s) for s in sys.argv[1].split(",")]
skip = set(sys.argv[2].split(","))
variants = sys.argv[3:]
for seed in seeds:
    for cell in DEVELOPMENT:
        if cell.network in skip:
            continue
        if not [v for v in variants if (str(cell), seed, v) not in done]:
            continue
        d = problem(cell, seed)
        cache = {}
        folder = (
            Path(os.environ["BAYESMOOTH_OUT"]) / "states" / f"{seed}-{str(cell).replace(' · ', '_').replace(' ', '')}"
        )
        x = torch.cat([d.inputs, d.held_inputs])
        y = torch.cat([d.labels, d.held_labels])
        n = len(d.labels)
        for v in variants:
            if (str(cell), seed, v) in done:
                continue
            for f in glob.glob(str(folder / "*-predicted*")):
                os.remove(f)
            C.learn_predictions = make(cell, seed, v, cache)
            t = time.process_time()
            f = C.fit(
                lambda: d.model(seed),
                (x, y),
                cell.epochs,
                batch_size=cell.batch,
                held_back=range(n, len(y)),
                grid=GRIDS["fit"],
                seed=seed,
                teach=True,
                quiet=True,
                folder=folder,
            )
            said = predict(f.model, d.test_inputs)
            row = dict(
                cell=str(cell),
                seed=seed,
                variant=v,
                accuracy=100 * float((said.argmax(1) == d.test_labels).double().mean()),
                nll=float(cross_entropy(said, d.test_labels)),
                w=cache.get("w"),
                labels=f.labels,
                lead=cache.pop("lead", None),
                seconds=time.process_time() - t,
            )
            with out.open("a") as o:
                o.write(json.dumps(row) + "\n")
            print(
                str(cell)[:45],
                seed,
                v,
                round(row["accuracy"], 1),
                round(row["nll"], 2),
                row["w"] and round(row["w"], 2),
                flush=True,
            )

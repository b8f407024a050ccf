"""Variants of what `fit` learns after half of a run, on the development pool; written for the code of commit 75342e0.

BAYESMOOTH_OUT=folder python fit_variants.py SEED baseline          # today's fit, with its states at half of the run
BAYESMOOTH_OUT=folder python fit_variants.py SEED held avgheld …    # other labels or students, from these states
"""

import sys, torch, json, math, numpy as np
from pathlib import Path
import reproduce
from benchmarks.training_tasks import DEVELOPMENT, problem, _read
from torch.nn.functional import cross_entropy, nll_loss

torch.set_num_threads(1)
import os

base = Path(os.environ["BAYESMOOTH_OUT"])


def clean_of(cell, seed):
    data, order = _read(cell.data), np.random.default_rng(seed)
    count = len(data.clean)
    fixed = np.random.default_rng(0).permutation(count)
    trained = int(0.6 * count) if data.trained is None else data.trained
    train = fixed[:trained] if data.trained is None else np.arange(trained)
    train = order.permutation(train)[: cell.examples]
    return data.clean[torch.from_numpy(train)]


TAUS = [2 ** (k / 2) for k in range(-6, 5)]


def em(p, y, K, strength, iters=15):
    """MAP of T rows: Dirichlet prior; T[i,j] = p(given j | true i)."""
    n = len(y)
    onehot = torch.nn.functional.one_hot(y, K).float()
    # first: scalar eta, uniform
    eta = 0.2
    py = p.gather(1, y[:, None])[:, 0]
    for _ in range(50):
        right = (1 - eta) * py / ((1 - eta) * py + eta * (1 - py) / (K - 1) + 1e-12)
        eta = float(1 - right.mean())
        eta = min(max(eta, 1e-4), 0.95)
    U = torch.full((K, K), eta / (K - 1))
    U.fill_diagonal_(1 - eta)
    T = U
    if strength is not None:
        for _ in range(iters):
            post = p * T[:, y].T
            post = post / post.sum(1, keepdim=True).clamp_min(1e-12)
            counts = post.T @ onehot + strength * U
            T = counts / counts.sum(1, keepdim=True)
    like = float((p @ T).gather(1, y[:, None]).clamp_min(1e-12).log().sum())
    return eta, T, like


def nll(p, y):
    return float(nll_loss(p.clamp_min(1e-6).log(), y))


def acc(p, y):
    return 100 * float((p.argmax(1) == y).double().mean())


# ---- baseline ----
def baseline(seed, method="fit"):
    import json, time
    from benchmarks.training import GRIDS, OURS, fit, predict, rate, cross_entropy
    import shutil
    import bayesmooth.optim.choose as C

    def logits_of(state, data, model):
        model.load_state_dict(state["model"])
        model.eval()
        with torch.no_grad():
            return [
                torch.cat([model(p) for p in torch.split(x, 500)])
                for x in (data.inputs, data.held_inputs, data.test_inputs)
            ]

    old = C.make_taught

    def patched(plan, best_two, others):
        folder = best_two[0].path.parent
        half = folder / "half"
        half.mkdir(exist_ok=True)
        order = [*best_two, *others]
        for t in order:
            shutil.copy(t.path, half / t.path.name)
        keep = []
        for t in order:
            st = t.load()
            if "best" in st:
                keep.append((t.path.name, logits_of(st["best"], data, plan.make_model())))
        torch.save(dict(order=[t.path.name for t in order], logits=keep), half / "logits.pt")
        return old(plan, best_two, others)

    C.make_taught = patched
    out = base / f"{method}.jsonl"
    done = (
        {(r["cell"], r["seed"]) for r in map(json.loads, out.read_text().splitlines())}
        if out.exists()
        else set()
    )
    cells = DEVELOPMENT
    for cell in cells:
        if (str(cell), seed) in done:
            continue
        t = time.process_time()
        data = problem(cell, seed)
        folder = base / f"{method}-{seed}-{str(cell).replace(' · ', '_').replace(' ', '')}"
        found = fit(
            lambda: data.model(seed),
            (data.inputs, data.labels),
            cell.epochs,
            batch_size=cell.batch,
            validation=(data.held_inputs, data.held_labels),
            grid=GRIDS[method],
            teach=method in OURS,
            seed=seed,
            quiet=True,
            folder=folder,
        )
        last = []
        for p in sorted(folder.glob("*.pt")):
            if p.name == "labels.pt":
                continue
            st = torch.load(p, weights_only=True)
            if st["parts"] == 16 and "best" in st:
                last.append(
                    (p.name, max(st["looks"]), logits_of(st["best"], data, data.model(seed)))
                )
        torch.save(last, folder / "last.logits")
        for p in folder.glob("*.pt"):
            p.unlink()
        said = predict(found.model, data.test_inputs)
        best = max(found.table, key=rate)
        row = dict(
            cell=str(cell),
            seed=seed,
            method=method,
            validation=best["accuracy"],
            validation_nll=best["nll"],
            accuracy=100 * float((said.argmax(1) == data.test_labels).double().mean()),
            nll=float(cross_entropy(said, data.test_labels)),
            labels=found.labels,
            tried=found.table,
            seconds=time.process_time() - t,
        )
        with out.open("a") as f:
            f.write(json.dumps(row) + "\n")
        print(cell, row["accuracy"], row["nll"], row["labels"], row["seconds"], flush=True)


# ---- labels ----
import sys, json, time, shutil
from functools import partial
import bayesmooth.optim.choose as C
from bayesmooth.optim.trial import *
from bayesmooth.optim.heldout import Batches
from bayesmooth.optim.ivon import IVON
from torch.optim import AdamW

torch.set_num_threads(1)


def calibrate(logs, y, K, strength=20.0, taus=TAUS):
    best = max(
        ((em((logs / t).softmax(1), y, K, strength), t) for t in taus), key=lambda r: r[0][2]
    )
    (eta, T, like), t = best
    return eta, T, t


def mean_logs(L, i):
    return (sum(l[i].softmax(1) for _, l in L) / len(L)).clamp_min(1e-9).log()


def rule_power(L, d):
    logs = [mean_logs(L, i) for i in (0, 1)]
    p = logs[1].exp()
    sure, cl = p.max(1)
    top = sure.topk(max(round(0.1 * len(sure)), 1)).indices
    power = 2.0 if float((cl[top] == d.held_labels[top]).double().mean()) < 0.8 else 1.0
    return [(l * power).softmax(1) for l in logs]


def rule_map(L, d, strength=20.0):
    logs = [mean_logs(L, i) for i in (0, 1)]
    eta, T, t = calibrate(logs[1], d.held_labels, logs[1].shape[1], strength)
    return [(l / t).softmax(1) for l in logs]


def v_base(L, d, cell):
    return d.inputs, rule_power(L, d)[0]


def v_held(L, d, cell):
    a, b = rule_power(L, d)
    return torch.cat([d.inputs, d.held_inputs]), torch.cat([a, b])


def v_map(L, d, cell):
    return d.inputs, rule_map(L, d)[0]


def v_mapheld(L, d, cell):
    a, b = rule_map(L, d)
    return torch.cat([d.inputs, d.held_inputs]), torch.cat([a, b])


def v_sharpheld(L, d, cell):
    a, b = rule_power(L, d)
    return torch.cat([d.inputs, d.held_inputs]), torch.nn.functional.one_hot(
        torch.cat([a, b]).argmax(1), a.shape[1]
    ).float()


def v_mixheld(L, d, cell):
    """half predicted, half given; held inputs predicted"""
    a, b = rule_map(L, d)
    y = torch.nn.functional.one_hot(d.labels, a.shape[1]).float()
    return torch.cat([d.inputs, d.held_inputs]), torch.cat([(a + y) / 2, b])


def v_bayesheld(L, d, cell):
    logs = [mean_logs(L, i) for i in (0, 1)]
    eta, T, t = calibrate(logs[1], d.held_labels, logs[1].shape[1])
    a, b = [(l / t).softmax(1) for l in logs]
    a = a * T[:, d.labels].T
    a = a / a.sum(1, keepdim=True)
    return torch.cat([d.inputs, d.held_inputs]), torch.cat([a, b])


def run(seed, name):
    out = base / f"variant-{name}.jsonl"
    done = (
        {(r["cell"], r["seed"]) for r in map(json.loads, out.read_text().splitlines())}
        if out.exists()
        else set()
    )
    for cell in DEVELOPMENT:
        fo = base / f"fit-{seed}-{str(cell).replace(' · ', '_').replace(' ', '')}"
        if (str(cell), seed) in done or not (fo / "last.logits").exists():
            continue
        start = time.process_time()
        d = problem(cell, seed)
        half = torch.load(fo / "half" / "logits.pt")
        inputs, labels = globals()["v_" + name](half["logits"], d, cell)
        first = half["order"][0]
        setting = dict(C.GRID[int(first[:-3])])
        n = Batches(d.inputs, d.labels, cell.batch)
        steps = max(round(cell.epochs * len(n)), 1)
        plan = Plan(
            lambda: d.model(seed),
            Batches(inputs, labels, cell.batch),
            Batches(d.held_inputs, d.held_labels, 500),
            torch.nn.functional.cross_entropy,
            partial(IVON, ess=len(d.labels), steps=steps, seed=seed),
            steps,
            seed,
            False,
        )
        state = torch.load(fo / "half" / first, weights_only=True) | {"looks": []}
        state.pop("best", None)
        tmp = fo / f"v-{name}"
        tmp.mkdir(exist_ok=True)
        torch.save(state, tmp / "t.pt")
        torch.save(labels, tmp / "l.pt")
        tr = Trial(setting, tmp / "t.pt", tmp / "l.pt")
        with torch.random.fork_rng():
            advance(plan, 16, tr)
        st = tr.load()
        model = d.model(seed)
        if "best" not in st:
            print(cell, "diverged")
            continue
        model.load_state_dict(st["best"]["model"])
        model.eval()
        with torch.no_grad():
            lg = [
                torch.cat([model(p) for p in torch.split(x, 500)])
                for x in (d.inputs, d.held_inputs, d.test_inputs)
            ]
        torch.save(lg, fo / f"v-{name}.logits")
        shutil.rmtree(tmp)
        row = dict(
            cell=str(cell),
            seed=seed,
            name=name,
            acc=acc(lg[2], d.test_labels),
            nll=nll(lg[2].softmax(1), d.test_labels),
            val=100 * max(st["looks"])[1],
            vnll=max(st["looks"])[2],
            s=time.process_time() - start,
        )
        with out.open("a") as f:
            f.write(json.dumps(row) + "\n")
        print(row["cell"][:44], name, row["acc"], row["nll"], row["s"], flush=True)


ETAS = [0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7]
TS = [2 ** (k / 2) for k in range(-6, 4)]


def grid(logs, y, K):
    W = []
    for t in TS:
        py = (logs / t).softmax(1).gather(1, y[:, None])[:, 0].double()
        for e in ETAS:
            W.append(
                (float(((1 - e) * py + e * (1 - py) / (K - 1)).clamp_min(1e-9).log().sum()), t, e)
            )
    return W


def post(logs, y):
    W = grid(logs, y, logs.shape[1])
    m = max(w[0] for w in W)
    wt = {}
    for l, t, e in W:
        wt[t] = wt.get(t, 0) + math.exp(l - m)
    s = sum(wt.values())
    return {t: w / s for t, w in wt.items()}


def soften(l, wt):
    return sum(w * (l / t).softmax(1) for t, w in wt.items() if w > 1e-4)


def rule_avg(L, d):
    logs = [mean_logs(L, i) for i in (0, 1)]
    wt = post(logs[1], d.held_labels)
    return [soften(l, wt) for l in logs]


def v_avg(L, d, cell):
    return d.inputs, rule_avg(L, d)[0]


def v_avgheld(L, d, cell):
    a, b = rule_avg(L, d)
    return torch.cat([d.inputs, d.held_inputs]), torch.cat([a, b])


# ---- students ----
def run3(seed, name, start, length, rule=rule_avg, who=0, cells=DEVELOPMENT):
    out = base / f"variant-{name}.jsonl"
    done = (
        {(r["cell"], r["seed"]) for r in map(json.loads, out.read_text().splitlines())}
        if out.exists()
        else set()
    )
    for cell in cells:
        fo = base / f"fit-{seed}-{str(cell).replace(' · ', '_').replace(' ', '')}"
        if (str(cell), seed) in done or not (fo / "last.logits").exists():
            continue
        t0 = time.process_time()
        d = problem(cell, seed)
        half = torch.load(fo / "half" / "logits.pt")
        labels = rule(half["logits"], d)[0]
        first = half["order"][who]
        setting = dict(C.GRID[int(first[:-3])])
        n = Batches(d.inputs, d.labels, cell.batch)
        steps = max(round(cell.epochs * len(n)), 1)
        st = torch.load(fo / "half" / first, weights_only=True)

        def make():
            m = d.model(seed)
            if start == "best":
                m.load_state_dict(st["best"]["model"])
            return m

        steps = max(round(steps * length), 1)
        plan = Plan(
            make,
            Batches(d.inputs, labels, cell.batch),
            Batches(d.held_inputs, d.held_labels, 500),
            torch.nn.functional.cross_entropy,
            partial(IVON, ess=len(d.labels), steps=steps, seed=seed),
            steps,
            seed,
            False,
        )
        tmp = fo / f"v-{name}"
        tmp.mkdir(exist_ok=True)
        torch.save(labels, tmp / "l.pt")
        if (tmp / "t.pt").exists():
            (tmp / "t.pt").unlink()
        tr = Trial(setting, tmp / "t.pt", tmp / "l.pt")
        with torch.random.fork_rng():
            advance(plan, 16, tr)
        s2 = tr.load()
        model = d.model(seed)
        if "best" not in s2:
            print(cell, "diverged")
            continue
        model.load_state_dict(s2["best"]["model"])
        model.eval()
        with torch.no_grad():
            lg = [
                torch.cat([model(p) for p in torch.split(x, 500)])
                for x in (d.inputs, d.held_inputs, d.test_inputs)
            ]
        torch.save(lg, fo / f"v-{name}.logits")
        shutil.rmtree(tmp)
        row = dict(
            cell=str(cell),
            seed=seed,
            name=name,
            acc=acc(lg[2], d.test_labels),
            nll=nll(lg[2].softmax(1), d.test_labels),
            val=100 * max(s2["looks"])[1],
            vnll=max(s2["looks"])[2],
            s=time.process_time() - t0,
        )
        with out.open("a") as f:
            f.write(json.dumps(row) + "\n")
        print(row["cell"][:44], name, row["acc"], row["nll"], row["s"], flush=True)


HOW = {"long": ("best", 1.0), "scratch": ("scratch", 1.0), "restart": ("best", 0.5)}


def rule_round2(L, d, fo=None):
    s = CUR["lg"]
    n = len(L)
    probs = [(sum(l[i].softmax(1) for _, l in L) / n + s[i].softmax(1)) / 2 for i in (0, 1)]
    logs = [p.clamp_min(1e-9).log() for p in probs]
    wt = post(logs[1], d.held_labels)
    return [soften(l, wt) for l in logs]


CUR = {}


def rule_late(L, d):
    return rule_avg([("g", CUR["lg"]), *L[1:]], d)


def again(seed, name, source):
    for cell in DEVELOPMENT:
        fo = base / f"fit-{seed}-{str(cell).replace(' · ', '_').replace(' ', '')}"
        if name == "late" and (fo / "last.logits").exists():
            CUR["lg"] = [x for x in torch.load(fo / "last.logits") if x[0] != "taught.pt"][0][2]
            run3(seed, name, "best", 0.5, rule=rule_late, cells=[cell])
        elif (fo / f"v-{source}.logits").exists():
            CUR["lg"] = torch.load(fo / f"v-{source}.logits")
            run3(seed, name, "best", 0.5, rule=rule_round2, cells=[cell])


if __name__ == "__main__":
    seed = int(sys.argv[1])
    for name in sys.argv[2:]:
        if name == "baseline":
            baseline(seed)
        elif name in HOW:
            run3(seed, name, *HOW[name])
        elif name == "second":
            run3(seed, name, "best", 0.5, who=1)
        elif name in ("round2", "cross", "late"):
            again(seed, name, {"round2": "restart", "cross": "second"}.get(name))
        else:
            run(seed, name)

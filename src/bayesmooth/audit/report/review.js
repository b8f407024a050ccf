// The review: a queue that was drawn, the share of wrong labels that follows from it, and the ranking that decisions teach.
// audit/review.py computes the same numbers; its docstrings say why.

const design = audit.review;
const traits = design && Object.fromEntries(Object.entries(design.traits).map(([name, column]) => [name, unpack(column)]));
const queuePlace = new Map(design ? design.queue.map((example, k) => [example, k]) : []);
const drawnAs = (i) => (queuePlace.has(i) ? design.drawn[queuePlace.get(i)] : null);
const inQueueOrder = () => Uint32Array.from([...(design?.queue ?? []), ...suspicion.order.filter((i) => !queuePlace.has(i))]);

let chance = null; // of every label to be wrong, once decisions have taught it
let taughtBy = 0; // tens of decisions

// Whether each label that was looked at is wrong: decisions of this page, and those that the audit was made with.
function verdicts() {
  const made = new Map(design ? design.wrong : []);
  for (const [example, { name }] of decisions) {
    if (name === 'skip') made.delete(example);
    else made.set(example, name === 'keep' ? 0 : 1);
  }
  return made;
}

// ---- The small model ----

const dot = (a, b) => a.reduce((sum, value, k) => sum + value * b[k], 0);
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const logOnePlusExp = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
const rowAt = (table, width, i) => Array.from(table.subarray(i * width, (i + 1) * width));
const placeOf = (i) => rowAt(traits.places, design.places, i).map((value) => value / 127);
// What other data sets teach of a label: by its score, and by its numbers where these have effects.
function priorOdds(i, effects) {
  const numbers = effects ? design.learned.reduce((sum, effect, k) => sum + effect * traits.numbers[i * design.numbers + k], 0) : 0;
  return design.intercept + design.slope * traits.score[i] + numbers;
}

// How the log-odds of the seen labels vary together under the prior: an array of rows.
function covary(seen, effects, places) {
  const [level, tilt] = design.spread.map((s) => s ** 2);
  const numbers = seen.map((i) => rowAt(traits.numbers, design.numbers, i));
  const at = places ? seen.map(placeOf) : null;
  return seen.map((i, a) => seen.map((j, b) => {
    const same = traits.given[i] === traits.given[j];
    let found = level + tilt * traits.score[i] * traits.score[j];
    if (effects) found += effects * (dot(numbers[a], numbers[b]) + design.classVariance * (same + (traits.rival[i] === traits.rival[j])));
    if (places && same) found += places * dot(at[a], at[b]);
    return found;
  }));
}

// The lower triangle L with LLᵀ = I + √w K √w, and the solution of (LLᵀ) x = b.
function decompose(covariance, root) {
  const lower = covariance.map((row, a) => Float64Array.from(row, (value, b) => (a === b ? 1 : 0) + root[a] * value * root[b]));
  for (let a = 0; a < lower.length; a++) {
    for (let b = 0; b <= a; b++) {
      let sum = lower[a][b];
      for (let k = 0; k < b; k++) sum -= lower[a][k] * lower[b][k];
      lower[a][b] = a === b ? Math.sqrt(sum) : sum / lower[b][b];
    }
  }
  return lower;
}

function solve(lower, right) {
  const x = Float64Array.from(right);
  for (let a = 0; a < x.length; a++) {
    for (let k = 0; k < a; k++) x[a] -= lower[a][k] * x[k];
    x[a] /= lower[a][a];
  }
  for (let a = x.length - 1; a >= 0; a--) {
    for (let k = a + 1; k < x.length; k++) x[a] -= lower[k][a] * x[k];
    x[a] /= lower[a][a];
  }
  return x;
}

// The pull of each seen label on the log-odds at their mode, and the log-evidence.
function findMode(prior, covariance, wrong) {
  const move = (pull) => covariance.map((row) => dot(row, pull));
  const value = (pull, moved) => moved.reduce((sum, m, a) => sum + wrong[a] * (prior[a] + m) - logOnePlusExp(prior[a] + m) - pull[a] * m / 2, 0);
  const weigh = (moved) => moved.map((m, a) => sigmoid(prior[a] + m)).map((p) => [p, Math.sqrt(p * (1 - p))]);
  let [pull, moved] = [wrong.map(() => 0), wrong.map(() => 0)];
  let best = value(pull, moved);
  for (let round = 0; round < 50; round++) {
    const weights = weigh(moved);
    const root = weights.map(([, r]) => r);
    const target = weights.map(([p, r], a) => r * r * moved[a] + wrong[a] - p);
    const inner = solve(decompose(covariance, root), move(target).map((m, a) => root[a] * m));
    const full = target.map((t, a) => t - root[a] * inner[a]);
    let [step, gain, tried] = [1, -1, pull];
    for (; gain < 0 && step > 1e-3; step /= 2) {
      tried = pull.map((before, a) => before + step * (full[a] - before));
      gain = value(tried, move(tried)) - best;
    }
    if (!(gain >= 1e-10)) break;
    [pull, moved, best] = [tried, move(tried), best + gain];
  }
  const lower = decompose(covariance, weigh(moved).map(([, r]) => r));
  return { pull, evidence: best - lower.reduce((sum, row, a) => sum + Math.log(row[a]), 0) };
}

// The chances of all labels under one model: what the seen ones pull on is summed by class and by place first.
function carryOver(seen, pull, effects, places) {
  const [level, tilt] = design.spread.map((s) => s ** 2);
  const total = pull.reduce((sum, p) => sum + p, 0);
  const slope = seen.reduce((sum, i, a) => sum + pull[a] * traits.score[i], 0);
  const numbers = new Float64Array(design.numbers);
  const [byGiven, byRival, direction] = [new Map(), new Map(), new Map()];
  const add = (map, key, value) => map.set(key, (map.get(key) ?? 0) + value);
  seen.forEach((i, a) => {
    rowAt(traits.numbers, design.numbers, i).forEach((value, k) => { numbers[k] += pull[a] * value; });
    add(byGiven, traits.given[i], pull[a]);
    add(byRival, traits.rival[i], pull[a]);
    if (!places) return;
    const sum = direction.get(traits.given[i]) ?? new Float64Array(design.places);
    placeOf(i).forEach((value, k) => { sum[k] += places * pull[a] * value; });
    direction.set(traits.given[i], sum);
  });
  return Float64Array.from({ length: count }, (_, i) => {
    let odds = priorOdds(i, effects) + level * total + tilt * slope * traits.score[i];
    if (effects) {
      odds += effects * design.classVariance * ((byGiven.get(traits.given[i]) ?? 0) + (byRival.get(traits.rival[i]) ?? 0));
      for (let k = 0; k < design.numbers; k++) odds += effects * numbers[k] * traits.numbers[i * design.numbers + k];
    }
    const towards = direction.get(traits.given[i]);
    if (towards) for (let k = 0; k < design.places; k++) odds += (towards[k] * traits.places[i * design.places + k]) / 127;
    return sigmoid(odds);
  });
}

function fitModel(wrong, effects, places) {
  const every = [...wrong.keys()].sort((a, b) => a - b);
  const most = Math.min(every.length, design.mostLearned);
  const seen = Array.from({ length: most }, (_, k) => every[Math.floor((k * every.length) / most)]);
  const { pull, evidence } = findMode(seen.map((i) => priorOdds(i, effects)), covary(seen, effects, places), seen.map((i) => wrong.get(i)));
  return { evidence, chances: carryOver(seen, pull, effects, places) };
}

function teach(wrong) {
  const fits = design.scales.filter(([, places]) => !places || traits.places).map((scale) => fitModel(wrong, ...scale));
  const most = Math.max(...fits.map(({ evidence }) => evidence));
  const weights = fits.map(({ evidence }, k) => Math.exp(evidence - most) * (k ? (1 - design.scoreAlone) / (fits.length - 1) : design.scoreAlone));
  const sum = weights.reduce((total, w) => total + w, 0);
  return Float64Array.from({ length: count }, (_, i) => fits.reduce((mean, { chances }, k) => mean + (weights[k] / sum) * chances[i], 0));
}

// ---- The share of wrong labels ----

function student(freedom) {
  const z = design.normal;
  const terms = [(z ** 3 + z) / 4, (5 * z ** 5 + 16 * z ** 3 + 3 * z) / 96, (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / 384];
  return terms.reduce((sum, term, k) => sum + term / freedom ** (k + 1), z);
}

// Among all labels, or among those that pass the test; null where too few were drawn.
function estimateRate(wrong, control, test = () => true) {
  const members = Array.from({ length: count }, (_, i) => i).filter(test);
  const seen = design.queue.filter((i) => wrong.has(i) && test(i));
  const share = seen.reduce((sum, i) => sum + wrong.get(i), 0) / seen.length;
  if (seen.length && seen.length === members.length) return { estimate: share, low: share, high: share, draws: seen.length };
  const draws = seen.filter((i) => drawnAs(i) < 1).length;
  if (draws < design.leastDrawn) return null;
  const weights = seen.map((i) => 1 / drawnAs(i));
  const apart = seen.map((i) => wrong.get(i) - control[i]);
  const all = weights.reduce((sum, w) => sum + w, 0);
  const part = Math.min(all / members.length, 1);
  const mean = dot(weights, apart) / all;
  const told = members.reduce((sum, i) => sum + control[i], 0) / members.length + mean;
  const estimate = Math.min(Math.max(told, 0), 1);
  const spread = weights.reduce((sum, w, a) => sum + (1 - part / w) * (w * (apart[a] - mean)) ** 2, 0) / all ** 2;
  const [variance, t] = [(spread * draws) / (draws - 1), student(draws - 1)];
  const inside = estimate > 0 && estimate < 1 && variance > 0;
  const size = inside ? Math.min((estimate * (1 - estimate)) / variance, design.mostWorth * draws) : draws;
  const z = t ** 2 / size;
  const half = Math.sqrt(estimate * (1 - estimate) * z + z ** 2 / 4);
  const low = Math.min((estimate + z / 2 - half) / (1 + z), told - t * Math.sqrt(variance));
  return { estimate, low: Math.max(low, 0), high: Math.min((estimate + z / 2 + half) / (1 + z), 1), draws };
}

// ---- In the page ----

// After every tenth decision: what was decided stays in front, as it was; the rest is ranked anew. Whether it was.
function relearn() {
  const wrong = design ? verdicts() : new Map();
  const tens = Math.floor(wrong.size / 10);
  if (tens === taughtBy) return false;
  taughtBy = tens;
  chance = tens ? teach(wrong) : null;
  const before = suspicion.rank;
  const scores = Float64Array.from({ length: count }, (_, i) => (decisions.has(i) ? 2 + count - before[i] : chance ? chance[i] : disagreement[i]));
  suspicion = ranking(scores);
  orders.clear();
  return true;
}

// What the page says of the share: only once the queue is done, as the interval is meant for one look.
function drawRate() {
  const open = design ? design.queue.filter((i) => !decisions.has(i) && !design.wrong.some(([known]) => known === i)).length : -1;
  const started = design && open < design.queue.length;
  byId('rate').hidden = !started;
  if (!started) return;
  if (open) {
    byId('rate').replaceChildren(`${plural(open, 'label')} of the sample to go; then the page tells how many of all labels are wrong.`);
    return;
  }
  const wrong = verdicts();
  const control = fitModel(wrong, ...design.scales[0]).chances;
  const words = (told) => (told ? `${percent(told.estimate)} (${percent(told.low)} to ${percent(told.high)})` : 'too few drawn');
  const whole = estimateRate(wrong, control);
  const parts = label.several || classes.length > MOST_OPTIONS ? [] : classes.map((name, k) => [name, estimateRate(wrong, control, (i) => given[i] === k)]);
  const told = parts.filter(([, one]) => one).map(([name, one]) => [name, words(one)]);
  byId('rate').replaceChildren(el('b', { 'data-rate': whole && [whole.estimate, whole.low, whole.high].join(' '), text: whole ? `${words(whole)} of all labels are wrong.` : 'The sample is too small to tell how many labels are wrong.' }),
    whole ? ` 95 % interval, from ${plural(design.queue.length, 'reviewed label')}.` : '',
    ...(told.length > 1 ? [el('details', {}, el('summary', { text: 'Per class' }), buildTable(['Label', 'Wrong'], told))] : []));
}

// How sure the model is, in words: its percentages promise more than they hold. After a review, the chance that it taught.
const sureWords = (share) => audit.sure.findLast(([from]) => share >= from)[1];
const suspicionWords = (i) => (chance ? `${percent(chance[i])} wrong` : `No. ${number.format(suspicion.rank[i] + 1)}`);

// The review: a queue that was drawn, the share of wrong labels that follows from it, and the ranking that decisions teach.
// audit/review.py computes the same numbers; its docstrings say why.

const design = audit.review;
const traits = design && Object.fromEntries(Object.entries(design.traits).map(([name, column]) => [name, unpack(column)]));
const widthOf = (column) => (column ? column.length / count : 0);
const width = { numbers: widthOf(traits?.numbers), places: widthOf(traits?.places) };
const queuePlace = new Map(design ? design.queue.map((example, k) => [example, k]) : []);
const drawnAs = (i) => (queuePlace.has(i) ? design.drawn[queuePlace.get(i)] : null);
const inQueueOrder = () => Uint32Array.from([...(design?.queue ?? []), ...suspicion.order.filter((i) => !queuePlace.has(i))]);

let chance = null; // of every label to be wrong, once decisions have taught it
let taughtBy = 0; // tens of decisions
let ratedBy = null; // what was decided on the queue when the share was told

// Whether each label that was looked at is wrong.
function verdicts() {
  const made = [...decisions].map(([example, decided]) => [example, onData(example, decided)[1]]).filter(([, name]) => name !== 'skip');
  return new Map(made.map(([example, name]) => [example, name === 'keep' ? 0 : 1]));
}

const queueDone = () => design !== null && design.queue.every((i) => decisions.has(i));

// ---- The small model ----

const dot = (a, b) => a.reduce((sum, value, k) => sum + value * b[k], 0);
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const logOnePlusExp = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
const labels = design ? traits.given.reduce((most, k, i) => Math.max(most, k, traits.rival[i]), 0) + 1 : 0;

// What other data sets teach of a label: by its score, and by its numbers where these have effects.
function priorOdds(i, effects) {
  const numbers = effects ? design.LEARNED.reduce((sum, effect, k) => sum + effect * traits.numbers[i * width.numbers + k], 0) : 0;
  return design.INTERCEPT + design.SLOPE * traits.score[i] + numbers;
}

// Calls add(column, value) for every feature of a label that is not 0; each has an effect ~ N(0, 1).
function listFeatures(i, effects, places, add) {
  add(0, design.SPREAD[0]);
  add(1, design.SPREAD[1] * traits.score[i]);
  if (effects) {
    add(2 + traits.given[i], design.OF_CLASS);
    add(2 + labels + traits.rival[i], design.OF_CLASS);
    for (let k = 0; k < width.numbers; k++) add(2 + 2 * labels + k, traits.numbers[i * width.numbers + k]);
  }
  if (!places) return;
  const start = 2 + 2 * labels + width.numbers + width.places * traits.given[i];
  for (let k = 0; k < width.places; k++) add(start + k, (design.OF_PLACE / 127) * traits.places[i * width.places + k]);
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

// The pull of each seen label on the log-odds at their mode, the chance of each without its own decision, the log-evidence.
function findMode(prior, covariance, wrong) {
  const move = (pull) => covariance.map((row) => dot(row, pull));
  const value = (pull, moved) => moved.reduce((sum, m, a) => sum + wrong[a] * (prior[a] + m) - logOnePlusExp(prior[a] + m) - pull[a] * m / 2, 0);
  const weigh = (moved) => moved.map((m, a) => sigmoid(prior[a] + m)).map((p) => [p, Math.sqrt(Math.max(p * (1 - p), 1e-12))]);
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
  const root = weigh(moved).map(([, r]) => r);
  const lower = decompose(covariance, root);
  const inverse = lower.map((_, a) => solve(lower, lower.map((row, b) => (a === b ? 1 : 0)))[a]);
  const leftOut = moved.map((m, a) => sigmoid(prior[a] + m - (pull[a] / root[a] ** 2) * (1 / inverse[a] - 1)));
  return { pull, leftOut, evidence: best - lower.reduce((sum, row, a) => sum + Math.log(row[a]), 0) };
}

function fitModel(seen, wrong, effects, places) {
  const columns = new Float64Array(2 + 2 * labels + width.numbers + labels * width.places);
  const covariance = seen.map((i) => {
    columns.fill(0);
    listFeatures(i, effects, places, (at, value) => { columns[at] = value; });
    return seen.map((j) => {
      let sum = 0;
      listFeatures(j, effects, places, (at, value) => { sum += columns[at] * value; });
      return sum;
    });
  });
  const { pull, leftOut, evidence } = findMode(seen.map((i) => priorOdds(i, effects)), covariance, wrong);
  columns.fill(0);
  seen.forEach((i, a) => listFeatures(i, effects, places, (at, value) => { columns[at] += pull[a] * value; }));
  const chance = Float64Array.from({ length: count }, (_, i) => {
    let odds = priorOdds(i, effects);
    listFeatures(i, effects, places, (at, value) => { odds += columns[at] * value; });
    return sigmoid(odds);
  });
  return { chance, leftOut, evidence };
}

// The chance of every label to be wrong, and the same without its own decision.
function teach(wrong) {
  const every = [...wrong.keys()].sort((a, b) => a - b);
  const most = Math.min(every.length, design.MOST_LEARNED);
  const seen = Array.from({ length: most }, (_, k) => every[Math.floor((k * every.length) / most)]);
  const decided = seen.map((i) => wrong.get(i));
  const fits = design.MODELS.filter(([, places]) => !places || traits.places).map((model) => fitModel(seen, decided, ...model));
  const likeliest = Math.max(...fits.map(({ evidence }) => evidence));
  const weights = fits.map(({ evidence }, k) => Math.exp(evidence - likeliest) * (k ? (1 - design.SCORE_ALONE) / (fits.length - 1) : design.SCORE_ALONE));
  const sum = weights.reduce((total, w) => total + w, 0);
  const average = (name, i) => fits.reduce((mean, fit, k) => mean + (weights[k] / sum) * fit[name][i], 0);
  const taught = Float64Array.from({ length: count }, (_, i) => average('chance', i));
  const leftOut = taught.slice();
  seen.forEach((i, a) => { leftOut[i] = average('leftOut', a); });
  return { chance: taught, leftOut };
}

// ---- The share of wrong labels ----

function student(freedom) {
  const z = design.NORMAL_95;
  const terms = [(z ** 3 + z) / 4, (5 * z ** 5 + 16 * z ** 3 + 3 * z) / 96, (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / 384];
  return terms.reduce((sum, term, k) => sum + term / freedom ** (k + 1), z);
}

// Among all labels, or among those that pass the test; null where too few were drawn.
function estimateRate(wrong, taught, test = () => true) {
  const members = Array.from({ length: count }, (_, i) => i).filter(test);
  const seen = design.queue.filter((i) => wrong.has(i) && test(i));
  const share = seen.reduce((sum, i) => sum + wrong.get(i), 0) / seen.length;
  if (seen.length && seen.length === members.length) return { estimate: share, low: share, high: share, draws: seen.length };
  const draws = seen.filter((i) => drawnAs(i) < 1).length;
  if (draws < design.LEAST_DRAWN) return null;
  const weights = seen.map((i) => 1 / drawnAs(i));
  const apart = seen.map((i) => wrong.get(i) - taught.leftOut[i]);
  const all = weights.reduce((sum, w) => sum + w, 0);
  const part = Math.min(all / members.length, 1);
  const mean = dot(weights, apart) / all;
  const told = members.reduce((sum, i) => sum + taught.chance[i], 0) / members.length + mean;
  const estimate = Math.min(Math.max(told, 0), 1);
  const shares = weights.map((w) => ((1 - part / w) * (w / all) ** 2 * draws) / (draws - 1));
  const spread = dot(shares, apart.map((value) => (value - mean) ** 2));
  const expected = dot(shares, seen.map((i) => taught.leftOut[i] * (1 - taught.leftOut[i])));
  const [variance, t] = [Math.max(spread, (spread + expected) / 2), student(draws - 1)];
  const z = t ** 2 * (estimate > 0 && estimate < 1 && variance > 0 ? variance / (estimate * (1 - estimate)) : 1 / draws);
  const half = Math.sqrt(estimate * (1 - estimate) * z + z ** 2 / 4);
  const low = Math.min((estimate + z / 2 - half) / (1 + z), told - t * Math.sqrt(variance));
  return { estimate, low: Math.max(low, 0), high: Math.min((estimate + z / 2 + half) / (1 + z), 1), draws };
}

// ---- In the page ----

// After every tenth decision: what was decided here stays in front, as it was; the rest is ranked anew, earlier decisions
// last. Whether it was.
function relearn() {
  const wrong = design ? verdicts() : new Map();
  const tens = Math.floor(wrong.size / 10);
  if (tens === taughtBy) return false;
  taughtBy = tens;
  chance = tens ? teach(wrong).chance : null;
  const before = suspicion.rank;
  const scores = Float64Array.from({ length: count }, (_, i) => (
    givenBefore.has(i) && wrong.has(i) ? -1 : decisions.has(i) && !givenBefore.has(i) ? 2 + count - before[i] : chance?.[i] ?? disagreement[i]));
  suspicion = ranking(scores);
  orders.clear();
  return true;
}

// What the page says of the share: only once the queue is done, as the interval is meant for one look.
function drawRate() {
  byId('rate').hidden = !queueDone();
  if (byId('rate').hidden) return;
  const wrong = new Map([...verdicts()].filter(([i]) => queuePlace.has(i)));
  if (ratedBy === [...wrong].join()) return;
  ratedBy = [...wrong].join();
  const taught = teach(wrong);
  const words = (told) => (told ? `${percent(told.estimate)} (${percent(told.low)} to ${percent(told.high)})` : 'too few drawn');
  const whole = estimateRate(wrong, taught);
  const parts = label.several || classes.length > MOST_OPTIONS ? [] : classes.map((name, k) => [name, estimateRate(wrong, taught, (i) => traits.given[i] === k)]);
  const told = parts.filter(([, one]) => one).map(([name, one]) => [name, words(one)]);
  byId('rate').replaceChildren(el('b', { 'data-rate': whole && [whole.estimate, whole.low, whole.high].join(' '), text: whole ? `${words(whole)} of all labels are wrong.` : 'The sample is too small to tell how many labels are wrong.' }),
    whole ? ` 95 % interval, from ${plural(whole.draws, 'reviewed label')}.` : '',
    ...(told.length > 1 ? [el('details', {}, el('summary', { text: 'Per class' }), buildTable(['Label', 'Wrong'], told))] : []));
}

// How sure the model is, in words: its percentages promise more than they hold. After a review, the chance that it taught.
const sureWords = (share) => audit.sure.findLast(([from]) => share >= from)[1];
const suspicionWords = (i) => (chance ? `${percent(chance[i])} wrong` : `No. ${number.format(suspicion.rank[i] + 1)}`);

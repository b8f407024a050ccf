// From scores to places between 0 and 1, with ticks.

function quantile(sortedDescending, share) {
  return sortedDescending.values[sortedDescending.order[Math.min(count - 1, Math.floor((1 - share) * count))]];
}

// The top of the ranking gets the room: top 1, top 10, top 100 are equally far apart.
// The line is drawn where the quadrants divide: which side of a threshold its ties are on is decided in Python alone.
function rankScale({ rank }, above) {
  const place = (r) => 1 - Math.log(r + 1) / Math.log(Math.max(count, 2));
  const ticks = [];
  for (let n = 1; n <= count; n *= 10) ticks.push({ at: place(n - 1), label: n === 1 ? 'top 1' : compact.format(n) });
  return { of: (i) => place(rank[i]), ticks, threshold: place(Math.max(above - 0.5, 0)) };
}
const compact = new Intl.NumberFormat('en', { notation: 'compact' });

function linearScale({ order, values }, threshold) {
  const low = Math.min(values[order[count - 1]], threshold);
  const high = Math.max(values[order[0]], threshold);
  const span = (high - low) || 1;
  const place = (value) => 0.03 + (0.94 * (value - low)) / span;
  return { of: (i) => place(values[i]), ticks: niceTicks(low, high).map((value) => ({ at: place(value), label: brief(value) })), threshold: place(threshold) };
}

function niceTicks(low, high) {
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
  return ticks;
}

// Three decades below the threshold are enough: what lies lower is drawn at the edge.
function logScale(sorted, threshold) {
  const high = Math.max(sorted.values[sorted.order[0]], threshold);
  const low = Math.max(quantile(sorted, 0.01), threshold / 1000, high * 1e-6);
  if (!(high > low * 10)) return linearScale(sorted, threshold);
  const place = (value) => 0.03 + (0.94 * Math.log(Math.max(value, low) / low)) / Math.log(high / low);
  const multiples = high / low < 300 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
    for (const value of multiples.map((m) => m * 10 ** e)) if (value >= low && value <= high) ticks.push({ at: place(value), label: brief(value) });
  }
  return { of: (i) => place(sorted.values[i]), ticks, threshold: place(threshold) };
}

function axes(mode) {
  const x = { ...byAmbiguity, values: ambiguity };
  const y = { ...bySuspicion, values: disagreement };
  const holds = (...cells) => cells.reduce((sum, q) => sum + quadrantCounts[q], 0);
  if (mode === 'rank') return { x: rankScale(x, holds(AMBIGUOUS, HARD)), y: rankScale(y, holds(MISLABELLED, HARD)) };
  return { x: logScale(x, ambiguityThreshold), y: linearScale(y, disagreementThreshold) };
}

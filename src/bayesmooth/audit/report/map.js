// The map of all labels on canvas, points blended pixel by pixel, and the table of which labels get confused.

// ---- From scores to places between 0 and 1, with ticks ----

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

// ---- Drawing, and a grid for finding points ----

const base = byId('scatter');
const over = byId('scatter-over');
const MARGIN = { left: 56, right: 14, top: 14, bottom: 44 };
const CELL = 16;
const plot = { mode: 'score', x: new Float32Array(count), y: new Float32Array(count), width: 0, height: 0, axes: null, grid: null };

// Shapes as corners on the unit circle; the circle itself has none.
const SHAPES = [null, [[-0.8, -0.8], [0.8, -0.8], [0.8, 0.8], [-0.8, 0.8]], [[0, -1.1], [1, 0.75], [-1, 0.75]], [[0, -1.15], [1.15, 0], [0, 1.15], [-1.15, 0]]];

function traceShape(context, shape, x, y, radius) {
  context.beginPath();
  if (SHAPES[shape] === null) context.arc(x, y, radius, 0, 2 * Math.PI);
  else SHAPES[shape].forEach(([dx, dy]) => context.lineTo(x + dx * radius, y + dy * radius));
  context.closePath();
}

const probe = el('span', { hidden: true });
document.body.append(probe);
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
const quadrantColour = (q) => colour(`q-${q}`);

const pixelRatio = () => devicePixelRatio || 1;

function prepare(canvas) {
  const ratio = pixelRatio();
  canvas.width = Math.round(plot.width * ratio);
  canvas.height = Math.round(plot.height * ratio);
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

function layoutScatter() {
  plot.width = byId('plot').clientWidth;
  plot.height = byId('plot').clientHeight;
  plot.axes = axes(plot.mode);
  for (let i = 0; i < count; i++) {
    plot.x[i] = toX(plot.axes.x.of(i));
    plot.y[i] = toY(plot.axes.y.of(i));
  }
}
const toX = (share) => MARGIN.left + share * (plot.width - MARGIN.left - MARGIN.right);
const toY = (share) => plot.height - MARGIN.bottom - share * (plot.height - MARGIN.top - MARGIN.bottom);

function drawScatter(visible) {
  if (plot.width === 0 || plot.height === 0) return; // a page that is not shown yet
  const context = prepare(base);
  drawRegions(context);
  const image = context.getImageData(0, 0, base.width, base.height);
  const inList = new Uint8Array(count);
  for (const i of visible) inList[i] = 1;
  const some = anyFilter() || !['all', 'contradicted'].includes(filters.show); // else all points are of interest
  const crowd = Math.min(1, (4000 / count) ** 0.3); // many points: smaller and paler
  const radius = 1.6 + 2.6 * crowd;
  if (some) stamp(image, CLEAR, colour('faint'), radius * 0.5, 0.5, (i) => inList[i] === 0);
  for (const q of [CLEAR, AMBIGUOUS, HARD, MISLABELLED]) {
    const small = q === CLEAR;
    stamp(image, q, quadrantColour(q), small ? radius * 0.6 : radius, crowd * (small ? 0.4 : 0.75), (i) => quadrant[i] === q && (!some || inList[i] === 1));
  }
  context.putImageData(image, 0, 0);
  drawAxes(context);
  drawNames(context);
  plot.grid = buildGrid(some ? visible : bySuspicion.order);
  base.setAttribute('aria-label', `Map of ${number.format(count)} examples, ${audit.axes[1]} against ${audit.axes[0]}: `
    + quadrants.map((name, q) => `${number.format(quadrantCounts[q])} ${name}`).join(', ') + '. The same examples are in the list above.');
  drawOver();
}

function drawRegions(context) {
  const [left, middle, right] = [toX(0), toX(plot.axes.x.threshold), toX(1)];
  const [bottom, centre, top] = [toY(0), toY(plot.axes.y.threshold), toY(1)];
  const corners = [[left, centre, middle, bottom], [middle, centre, right, bottom], [left, top, middle, centre], [middle, top, right, centre]];
  context.fillStyle = colour('card'); // opaque, so that points blend with what is there
  context.fillRect(0, 0, plot.width, plot.height);
  corners.forEach(([x0, y0, x1, y1], q) => {
    context.globalAlpha = SHOWS[filters.show].quadrant === q ? 0.14 : 0.06;
    context.fillStyle = quadrantColour(q);
    context.fillRect(x0, y0, x1 - x0, y1 - y0);
  });
  context.globalAlpha = 1;
  context.strokeStyle = colour('muted');
  context.setLineDash([3, 4]);
  context.beginPath();
  context.moveTo(middle, top); context.lineTo(middle, bottom);
  context.moveTo(left, centre); context.lineTo(right, centre);
  context.stroke();
  context.setLineDash([]);
}

// The names of the quadrants beside the line that divides them, where there is room.
function drawNames(context) {
  const [middle, centre] = [toX(plot.axes.x.threshold), toY(plot.axes.y.threshold)];
  context.font = `600 13px ${getComputedStyle(document.body).fontFamily}`;
  context.lineWidth = 4;
  context.lineJoin = 'round';
  context.strokeStyle = colour('card');
  context.fillStyle = colour('ink');
  quadrants.forEach((name, q) => {
    const right = q === AMBIGUOUS || q === HARD;
    if (context.measureText(capital(name)).width > 1.6 * (right ? toX(1) - middle : middle - toX(0))) return;
    context.textAlign = right ? 'right' : 'left';
    const at = [right ? toX(1) - 8 : toX(0) + 8, q === MISLABELLED || q === HARD ? centre - 9 : centre + 19];
    context.strokeText(capital(name), ...at);
    context.fillText(capital(name), ...at);
  });
}

function drawAxes(context) {
  context.fillStyle = colour('muted');
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = 'center';
  for (const { at, label } of plot.axes.x.ticks) context.fillText(label, toX(at), toY(0) + 17);
  context.textAlign = 'right';
  for (const { at, label } of plot.axes.y.ticks) context.fillText(label, toX(0) - 7, toY(at) + 4);
  context.fillStyle = colour('ink');
  context.textAlign = 'center';
  context.fillText('How unsure the model is →', (toX(0) + toX(1)) / 2, plot.height - 8);
  context.save();
  context.translate(13, (toY(0) + toY(1)) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText('How much it contradicts the label →', 0, 0);
  context.restore();
}

// The pixels a marker covers, as offsets in the image, and how much of each.
function coverage(shape, radius, width) {
  const half = Math.ceil(1.2 * radius) + 1;
  const pen = el('canvas', { width: 2 * half, height: 2 * half }).getContext('2d');
  traceShape(pen, shape, half, half, radius);
  pen.fill();
  const drawn = pen.getImageData(0, 0, 2 * half, 2 * half).data;
  const pixels = [];
  for (let k = 0; k < 4 * half * half; k++) {
    const [x, y] = [(k % (2 * half)) - half, Math.floor(k / (2 * half)) - half];
    if (drawn[4 * k + 3]) pixels.push({ offset: 4 * (y * width + x), share: drawn[4 * k + 3] / 255 });
  }
  return pixels;
}

// A marker at every point that passes the test: 100,000 take a blink, where drawing calls take seconds.
function stamp(image, shape, fill, radius, alpha, test) {
  const { data, width } = image;
  const ratio = pixelRatio();
  const pixels = coverage(shape, radius * ratio, width);
  const [red, green, blue] = fill.match(/[\d.]+/g).map(Number);
  for (let i = 0; i < count; i++) {
    if (!test(i)) continue;
    const centre = 4 * (Math.round(plot.y[i] * ratio) * width + Math.round(plot.x[i] * ratio));
    for (const { offset, share } of pixels) {
      const k = centre + offset;
      data[k] += (red - data[k]) * share * alpha;
      data[k + 1] += (green - data[k + 1]) * share * alpha;
      data[k + 2] += (blue - data[k + 2]) * share * alpha;
    }
  }
}

// items of cell c are items[start[c]] … items[start[c + 1] - 1].
function buildGrid(visible) {
  const across = Math.ceil(plot.width / CELL) + 1;
  const cellOf = (i) => Math.floor(plot.y[i] / CELL) * across + Math.floor(plot.x[i] / CELL);
  const start = new Uint32Array(across * (Math.ceil(plot.height / CELL) + 1) + 1);
  for (const i of visible) start[cellOf(i) + 1]++;
  for (let c = 1; c < start.length; c++) start[c] += start[c - 1];
  const next = start.slice();
  const items = new Uint32Array(visible.length);
  for (const i of visible) items[next[cellOf(i)]++] = i;
  return { across, start, items };
}

// The nearest point within reach of the pointer, or -1.
function pick(x, y) {
  const { across, start, items } = plot.grid;
  const [column, row] = [Math.floor(x / CELL), Math.floor(y / CELL)];
  let [best, bestDistance] = [-1, 14 ** 2];
  for (let r = Math.max(0, row - 1); r <= row + 1; r++) {
    for (let c = Math.max(0, column - 1); c <= Math.min(across - 1, column + 1); c++) {
      const cell = r * across + c;
      for (let k = start[cell]; k < start[cell + 1]; k++) {
        const distance = (plot.x[items[k]] - x) ** 2 + (plot.y[items[k]] - y) ** 2;
        if (distance < bestDistance) [best, bestDistance] = [items[k], distance];
      }
    }
  }
  return best;
}

function drawOver(hovered = -1, brush = null) {
  const context = prepare(over);
  const ring = (i, width) => {
    context.lineWidth = width;
    context.strokeStyle = colour('ink');
    context.beginPath();
    context.arc(plot.x[i], plot.y[i], 8, 0, 2 * Math.PI);
    context.stroke();
  };
  if (list.items.length) ring(currentExample(), 2);
  if (hovered >= 0) ring(hovered, 1.5);
  if (!brush) return;
  context.strokeStyle = colour('accent');
  context.fillStyle = colour('accent');
  context.strokeRect(brush.x, brush.y, brush.width, brush.height);
  context.globalAlpha = 0.12;
  context.fillRect(brush.x, brush.y, brush.width, brush.height);
}

// ---- The pointer: hover shows, a click opens, a drag selects a region ----

const tooltip = byId('tooltip');
let dragStart = null;

function place(event) {
  const box = base.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function brushTo({ x, y }) {
  return { x: Math.min(x, dragStart.x), y: Math.min(y, dragStart.y), width: Math.abs(x - dragStart.x), height: Math.abs(y - dragStart.y) };
}

function showTooltip(example, event) {
  tooltip.hidden = example < 0;
  base.style.cursor = example < 0 ? 'crosshair' : 'pointer';
  if (example < 0) return;
  tooltip.replaceChildren(
    content(example, 3),
    el('p', {}, el('b', { text: classes[given[example]] }), ' → ', el('b', { text: classes[suggested[example]] }), ` ${percent(suggestedProbability(example))}`),
    el('p', { class: 'hint', text: `${capital(quadrants[quadrant[example]])} · id ${idOf(example)}` }),
  );
  const left = Math.min(event.clientX + 16, innerWidth - tooltip.offsetWidth - 12);
  const above = event.clientY + 16 + tooltip.offsetHeight > innerHeight;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${above ? event.clientY - tooltip.offsetHeight - 12 : event.clientY + 16}px`;
}

function insideOf({ x, y, width, height }) {
  const mask = new Uint8Array(count);
  for (let i = 0; i < count; i++) mask[i] = Number(plot.x[i] >= x && plot.x[i] <= x + width && plot.y[i] >= y && plot.y[i] <= y + height);
  return mask.includes(1) ? mask : null;
}

base.addEventListener('pointerdown', (event) => {
  if (event.button !== 0) return;
  dragStart = place(event);
  if (event.pointerType !== 'touch') base.setPointerCapture(event.pointerId);
});

base.addEventListener('pointermove', (event) => {
  const at = place(event);
  const dragging = dragStart && event.pointerType !== 'touch' && Math.hypot(at.x - dragStart.x, at.y - dragStart.y) > 5;
  const example = dragging ? -1 : pick(at.x, at.y);
  showTooltip(example, event);
  drawOver(example, dragging ? brushTo(at) : null);
});

base.addEventListener('pointerup', (event) => {
  if (!dragStart) return;
  const brush = brushTo(place(event));
  const tap = Math.hypot(brush.width, brush.height) <= 5;
  const example = tap ? pick(dragStart.x, dragStart.y) : -1;
  dragStart = null;
  if (!tap) { // an empty region selects everything again
    const region = insideOf(brush);
    change(() => Object.assign(filters, { region, show: region ? 'all' : firstShow }));
  }
  else if (example >= 0) showExample(example);
});

base.addEventListener('pointerleave', (event) => { showTooltip(-1, event); drawOver(); });
base.addEventListener('pointercancel', () => { dragStart = null; tooltip.hidden = true; drawOver(); });

// ---- Label × suggestion: how often each label looks like another one ----

const MOST_CLASSES = 12; // of more, the most confused are shown: a larger table cannot be read
const MOST_OPTIONS = 40; // in a select; the search finds the others
const MOST_PAIRS = 6;

const pairCount = (row, column) => pairCounts.get(row * classes.length + column) ?? 0;
const largest = confusions.length ? confusions[0].times : 1;

// At most so many classes, those that are confused most, in their usual order.
function mostConfused(most) {
  const all = classes.map((_, k) => k);
  if (all.length <= most) return all;
  const errors = new Float64Array(classes.length);
  for (const { row, column, times } of confusions) { errors[row] += times; errors[column] += times; }
  return all.sort((a, b) => errors[b] - errors[a] || a - b).slice(0, most).sort((a, b) => a - b);
}

function choosePair(row, column) {
  const chosen = filters.given === row && filters.suggested === column;
  change(() => Object.assign(filters, chosen ? { show: firstShow, given: -1, suggested: -1 } : { show: 'all', given: row, suggested: column }));
  if (!chosen) toReview();
}

function matrixCell(row, column) {
  const times = pairCount(row, column);
  const same = row === column;
  const words = same ? `labelled ${classes[row]}, and looks it: ${times}` : `labelled ${classes[row]}, looks like ${classes[column]}: ${times}`;
  const button = el('button', {
    type: 'button', class: same ? 'cell same' : 'cell', title: words, 'aria-label': words, tabindex: -1,
    'data-row': row, 'data-column': column, text: times === 0 ? '' : times < 10000 ? String(times) : compact.format(times), onclick: () => choosePair(row, column),
  });
  if (!same && times) button.style.setProperty('--strength', `${Math.round(8 + 67 * (times / largest) ** 0.75)}%`);
  return el('td', {}, button);
}

// Of tags: how many examples have each, should have it, and should not; those that change most first.
function buildTags() {
  const counts = tags.names.map((name, k) => ({ name, k, has: 0, add: 0, remove: 0 }));
  const place = new Map(tags.names.map((name, k) => [name, k]));
  for (let i = 0; i < count; i++) {
    for (const tag of tagsOf(given[i])) counts[place.get(tag)].has++;
    if (given[i] === suggested[i]) continue;
    for (const tag of without(suggested[i], given[i])) counts[place.get(tag)].add++;
    for (const tag of without(given[i], suggested[i])) counts[place.get(tag)].remove++;
  }
  const some = counts.sort((a, b) => b.add + b.remove - a.add - a.remove || a.k - b.k).slice(0, MOST_OPTIONS);
  const choose = (k) => () => choosePair(-1, k);
  byId('matrix').replaceChildren(el('table', { class: 'people' },
    el('thead', {}, el('tr', {}, ...['Tag', 'Examples', 'To add', 'To remove'].map((title) => el('th', { scope: 'col', text: title })))),
    el('tbody', {}, ...some.map(({ name, k, has, add, remove }) => el('tr', {},
      el('th', { scope: 'row' }, el('button', { type: 'button', class: 'quiet', 'data-row': -1, 'data-column': k, text: name, onclick: choose(k) })),
      ...[has, add, remove].map((n) => el('td', { text: number.format(n) })))))));
  byId('matrix-title').textContent = 'Which tags would change';
  byId('matrix-hint').textContent = (some.length < counts.length ? `The ${some.length} of ${counts.length} tags that would change most. ` : '') + 'Click a tag for its examples.';
}

function buildMatrix() {
  if (tags) { buildTags(); return; }
  const some = mostConfused(MOST_CLASSES);
  const heading = (k, scope) => el('th', { scope, title: classes[k] }, el('span', { text: classes[k] }));
  const looks = ['matrix', some.length > 11 ? 'dense' : some.length < 6 ? 'roomy' : '', longestName < 4 ? 'short' : some.length > 5 ? 'upright' : ''];
  const table = el('table', { class: looks.join(' ') },
    el('caption', { text: 'Rows: the given label. Columns: the label it looks like.' }),
    el('thead', {}, el('tr', {}, el('td', {}), ...some.map((k) => heading(k, 'col')))),
    el('tbody', {}, ...some.map((row) => el('tr', {}, heading(row, 'row'), ...some.map((column) => matrixCell(row, column))))));
  byId('matrix').replaceChildren(table);
  byId('matrix-hint').textContent = (some.length < classes.length ? `The ${some.length} most confused of ${classes.length} classes. ` : '')
    + 'Rows: the given label; columns: what it looks like. Click a cell for its examples.';
  const cells = [...table.querySelectorAll('button')];
  cells[0].tabIndex = 0;
  table.addEventListener('keydown', (event) => moveInMatrix(event, cells, some.length));
}

// One stop for the Tab key, arrows inside.
function moveInMatrix(event, cells, width) {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width }[event.key];
  const target = cells[cells.indexOf(event.target) + step];
  if (!target) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}

function buildPairs() {
  byId('pairs-title').hidden = confusions.length === 0 || Boolean(tags);
  if (tags) return;
  byId('pairs').replaceChildren(...confusions.slice(0, MOST_PAIRS).map(({ row, column, times }) => {
    const bar = el('i', { 'aria-hidden': 'true' });
    bar.style.width = `${(100 * times) / largest}%`;
    return el('button', { type: 'button', class: 'pair', 'data-row': row, 'data-column': column, onclick: () => choosePair(row, column) },
      el('span', { class: 'pair-names' }, el('span', { text: classes[row] }), ' → ', el('span', { text: classes[column] })),
      el('span', { class: 'pair-bar' }, bar), el('span', { class: 'pair-count', text: number.format(times) }));
  }));
  byId('pairs').classList.toggle('long', confusions.slice(0, MOST_PAIRS).some(({ row, column }) => classes[row].length + classes[column].length > 14));
}

function markMatrix() {
  for (const node of document.querySelectorAll('#matrix button, #pairs button')) {
    node.setAttribute('aria-pressed', Number(node.dataset.row) === filters.given && Number(node.dataset.column) === filters.suggested);
  }
}

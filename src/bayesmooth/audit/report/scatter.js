// The two-axis scatter on canvas: points blended pixel by pixel, a grid for finding them.

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
const quadrantColour = (q) => colour(`q-${quadrants[q]}`);

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
  const some = visible.length < count;
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
  plot.grid = buildGrid(visible);
  base.setAttribute('aria-label', `Scatter of ${number.format(visible.length)} examples, ambiguity against disagreement: `
    + quadrants.map((name, q) => `${number.format(quadrantCounts[q])} ${name}`).join(', ') + '. The same examples are in the list below.');
  drawOver();
}

function drawRegions(context) {
  const [left, middle, right] = [toX(0), toX(plot.axes.x.threshold), toX(1)];
  const [bottom, centre, top] = [toY(0), toY(plot.axes.y.threshold), toY(1)];
  const corners = [[left, centre, middle, bottom], [middle, centre, right, bottom], [left, top, middle, centre], [middle, top, right, centre]];
  context.fillStyle = colour('card'); // opaque, so that points blend with what is there
  context.fillRect(0, 0, plot.width, plot.height);
  corners.forEach(([x0, y0, x1, y1], q) => {
    context.globalAlpha = filters.quadrant === q ? 0.14 : 0.06;
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
    if (context.measureText(capital(name)).width + 16 > (right ? toX(1) - middle : middle - toX(0))) return;
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
  context.fillText(`${audit.axes[0]} →`, (toX(0) + toX(1)) / 2, plot.height - 8);
  context.save();
  context.translate(13, (toY(0) + toY(1)) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(`${audit.axes[1]} →`, 0, 0);
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

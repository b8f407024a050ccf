// The pointer on the scatter: hover shows, a click opens, a drag selects a region.

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
  for (const i of list.items) mask[i] = Number(plot.x[i] >= x && plot.x[i] <= x + width && plot.y[i] >= y && plot.y[i] <= y + height);
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
  if (!tap) change(() => { filters.region = insideOf(brush); }); // an empty region selects everything again
  else if (example >= 0) showExample(example);
});

base.addEventListener('pointerleave', (event) => { showTooltip(-1, event); drawOver(); });
base.addEventListener('pointercancel', () => { dragStart = null; tooltip.hidden = true; drawOver(); });

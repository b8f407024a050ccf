// The ranked list, as a gallery or a table: only the rows in sight exist.

const list = { items: new Uint32Array(0), current: 0, view: hasContent ? 'gallery' : 'table', columns: 1, rowHeight: 44 };
const scroller = byId('list');
const inner = byId('list-inner');
const tableHead = byId('table-head');
const GAP = 12;
const currentExample = () => list.items[list.current];

function badge(example) {
  const decision = decisions.get(example);
  if (decision === undefined) return null;
  return el('span', { class: `badge ${decisionName(decision)}`, text: decisionWords(decision) });
}

function marker(q) {
  const canvas = el('canvas', { width: 28, height: 28, class: 'marker', 'aria-hidden': 'true' });
  const context = canvas.getContext('2d');
  context.fillStyle = quadrantColour(q);
  traceShape(context, q, 14, 14, q === CLEAR ? 9 : 11);
  context.fill();
  return canvas;
}

function verdictLine(example) {
  const same = given[example] === suggested[example];
  return el('p', { class: 'verdict-line' }, el('span', { text: classes[given[example]] }), same ? null : el('span', { class: 'arrow', text: '→' }),
    same ? null : el('b', { text: classes[suggested[example]] }));
}

function itemWords(example) {
  const decision = decisions.get(example);
  return `${idOf(example)}: labelled ${classes[given[example]]}, looks like ${classes[suggested[example]]}, ${percent(suggestedProbability(example))}, `
    + quadrants[quadrant[example]] + (decision === undefined ? '' : `, ${decisionWords(decision)}`);
}

function card(position) {
  const example = list.items[position];
  return el('div', { ...itemProperties(position), role: 'option', class: 'item card-item', 'aria-label': itemWords(example) },
    el('div', { class: 'media' }, content(example, 4)), verdictLine(example),
    el('p', { class: 'share-line' }, marker(quadrant[example]), badge(example) ?? percent(suggestedProbability(example))));
}

const TABLE = [
  { title: 'Rank', name: 'rank', cell: (i) => number.format(bySuspicion.rank[i] + 1) },
  { title: 'Example', name: 'example', sort: 'position', cell: (i) => (tileOf.has(i) ? thumbnail(i) : null), text: (i) => plainText(i) || idOf(i) },
  { title: 'Given', name: 'label', sort: 'given', cell: (i) => classes[given[i]] },
  { title: 'Suggested', name: 'label', sort: 'suggested', cell: (i) => classes[suggested[i]] },
  { title: 'Sure', name: 'numeric', sort: 'probability', cell: (i) => percent(suggestedProbability(i)) },
  { title: 'Disagreement', name: 'numeric wide', sort: 'disagreement', cell: (i) => brief(disagreement[i]) },
  { title: 'Ambiguity', name: 'numeric wide', sort: 'ambiguity', cell: (i) => brief(ambiguity[i]) },
  { title: 'Quadrant', name: 'quadrant wide', cell: (i) => marker(quadrant[i]), text: (i) => capital(quadrants[quadrant[i]]) },
  { title: 'Decision', name: 'decision', cell: (i) => badge(i) },
];

function tableRow(position) {
  const example = list.items[position];
  const cells = TABLE.map(({ name, cell, text }) => {
    const value = cell(example);
    return el('span', { role: 'gridcell', class: name }, value, text ? el('span', { text: text(example) }) : null);
  });
  return el('div', { ...itemProperties(position), role: 'row', 'aria-rowindex': position + 2, class: 'item row-item' }, ...cells);
}

function itemProperties(position) {
  return {
    id: `item-${list.items[position]}`, 'data-position': position, 'aria-selected': String(position === list.current),
    'aria-posinset': list.view === 'gallery' ? position + 1 : null, 'aria-setsize': list.view === 'gallery' ? list.items.length : null,
  };
}

function buildTableHead() {
  tableHead.replaceChildren(...TABLE.map(({ title, name, sort }) => {
    const active = sort && sorting.key === sort;
    const arrow = rising() ? ' ↑' : ' ↓';
    return el('span', { role: 'columnheader', class: name, 'aria-sort': active ? (rising() ? 'ascending' : 'descending') : null },
      sort ? el('button', { type: 'button', text: active ? title + arrow : title, onclick: () => sortBy(sort) }) : title);
  }));
}

function sortBy(key) {
  change(() => Object.assign(sorting, { key, reversed: sorting.key === key && !sorting.reversed }));
}

function measureList() {
  const gallery = list.view === 'gallery';
  const width = inner.clientWidth;
  const smallest = thumbnails ? 132 : 250;
  list.columns = gallery ? Math.max(1, Math.floor((width + GAP) / (smallest + GAP))) : 1;
  const cardWidth = (width - GAP * (list.columns - 1)) / list.columns;
  list.rowHeight = gallery ? (thumbnails ? Math.round(cardWidth) + 46 : 188) + GAP : 44;
  list.cardWidth = cardWidth;
  tableHead.hidden = gallery;
  scroller.setAttribute('role', gallery ? 'listbox' : 'grid');
  if (gallery) scroller.removeAttribute('aria-rowcount');
  else scroller.setAttribute('aria-rowcount', list.items.length + 1);
}

function drawList() {
  measureList();
  const rows = Math.ceil(list.items.length / list.columns);
  inner.style.height = `${rows * list.rowHeight}px`;
  const first = Math.max(0, Math.floor(scroller.scrollTop / list.rowHeight) - 2);
  const last = Math.min(rows, Math.ceil((scroller.scrollTop + scroller.clientHeight) / list.rowHeight) + 2);
  const nodes = [];
  for (let position = first * list.columns; position < Math.min(last * list.columns, list.items.length); position++) {
    const node = list.view === 'gallery' ? card(position) : tableRow(position);
    const [row, column] = [Math.floor(position / list.columns), position % list.columns];
    node.style.transform = `translate(${column * (list.cardWidth + GAP)}px, ${row * list.rowHeight}px)`;
    node.style.width = list.view === 'gallery' ? `${list.cardWidth}px` : '100%';
    node.style.height = `${list.rowHeight - (list.view === 'gallery' ? GAP : 0)}px`;
    nodes.push(node);
  }
  inner.replaceChildren(...nodes);
  byId('empty').hidden = list.items.length > 0;
  if (list.items.length && byId(`item-${currentExample()}`)) scroller.setAttribute('aria-activedescendant', `item-${currentExample()}`);
  else scroller.removeAttribute('aria-activedescendant');
}

function revealCurrent() {
  const head = tableHead.hidden ? 0 : tableHead.offsetHeight;
  const top = Math.floor(list.current / list.columns) * list.rowHeight;
  const room = scroller.clientHeight - head;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (top + list.rowHeight > scroller.scrollTop + room) scroller.scrollTop = top + list.rowHeight - room;
}

let pending = false;
scroller.addEventListener('scroll', () => {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; drawList(); });
});
inner.addEventListener('click', (event) => {
  const item = event.target.closest('.item');
  if (item) moveTo(Number(item.dataset.position));
});

// The review: the ranked list, of which only the rows in sight exist, and the example under review with its decision.

const list = { items: new Uint32Array(0), current: 0, view: hasContent ? 'gallery' : 'table', columns: 1, rowHeight: 44 };
const narrow = matchMedia('(max-width: 720px)'); // a phone: the example under review covers the page
const scroller = byId('list');
const inner = byId('list-inner');
const tableHead = byId('table-head');
const GAP = 12;
const TEXT_HEIGHT = 76; // of three lines; style.css has it too
const VOTE_LINE = 24; // one line of votes; style.css has it too
const TAG_LINES = 46; // two lines of tags, the rest is in the tooltip; style.css has it too
const longestName = Math.max(...classes.map((name) => name.length));
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

// "cat → dog" on one line where every such pair fits, else each name on lines of its own: names are never cut.
function verdictLine(label, looks) {
  if (tags) return el('p', { class: 'verdict-line changes', title: changeWords(label, looks) || classes[label] }, ...(label === looks ? chips(label) : changes(label, looks)));
  const parts = label === looks ? [] : [el('span', { class: 'arrow', text: '→' }), el('b', {}, ...breakable(classes[looks]))];
  return el('p', { class: 'verdict-line' }, el('span', {}, ...breakable(classes[label])), ...parts);
}

const chips = (label) => (tagsOf(label).size ? [...tagsOf(label)] : [tags.none]).map((tag) => el('span', { class: 'tag', text: tag }));

// The tags to add and to remove.
function changes(from, to) {
  const marked = (tag, sign, kind) => el('span', { class: `tag ${kind}` }, `${sign}\u2009`, el('span', {}, ...breakable(tag)));
  return [...without(to, from).map((tag) => marked(tag, '+', 'add')), ...without(from, to).map((tag) => marked(tag, '−', 'remove'))];
}

function itemWords(example) {
  const decision = decisions.get(example);
  return [`${idOf(example)}: labelled ${classes[given[example]]}`, `looks like ${classes[suggested[example]]}`, percent(suggestedProbability(example)),
    quadrants[quadrant[example]], ...findingWords(example), ...(decision === undefined ? [] : [decisionWords(decision)])].join(', ');
}

function card(position) {
  const example = list.items[position];
  const words = [percent(suggestedProbability(example)), ...findingWords(example)].join(' · ');
  return el('div', { ...itemProperties(position), role: 'option', class: 'item card-item', 'aria-label': itemWords(example) },
    el('div', { class: 'media' }, content(example, 3)), verdictLine(given[example], suggested[example]), voteCounts(example),
    el('p', { class: 'share-line' }, marker(quadrant[example]), badge(example) ?? el('span', { text: words })));
}

const TABLE = [
  { title: 'Rank', name: 'rank', cell: (i) => number.format(bySuspicion.rank[i] + 1) },
  { title: 'Example', name: 'example', sort: 'position', cell: (i) => (tileOf.has(i) ? thumbnail(i) : null), text: (i) => plainText(i) || idOf(i) },
  { title: tags ? 'Tags' : 'Label', name: 'label', sort: 'given', cell: (i) => classes[given[i]] },
  { title: tags ? 'Change' : 'Looks like', name: 'label', sort: 'suggested', cell: (i) => (tags ? changeWords(given[i], suggested[i]) : classes[suggested[i]]) },
  { title: 'Probability', name: 'numeric', sort: 'probability', cell: (i) => percent(suggestedProbability(i)) },
  { title: 'Verdict', name: 'quadrant wide', cell: (i) => marker(quadrant[i]), text: (i) => capital(quadrants[quadrant[i]]) },
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

// The height that the names of the labels need on a card of this width: one line where every pair of them fits.
const namesHeights = new Map();
function namesHeight(width) {
  const key = Math.round(width);
  if (!namesHeights.has(key)) namesHeights.set(key, measureNames(key));
  const [height, stacked] = namesHeights.get(key);
  inner.classList.toggle('stacked', stacked);
  return height;
}

function measureNames(width) {
  if (tags) return [TAG_LINES, false];
  const size = ({ row, column }) => classes[row].length + classes[column].length;
  const alone = classes.map((_, k) => ({ row: k, column: k }));
  const longest = [...confusions, ...alone].sort((a, b) => size(b) - size(a)).slice(0, 50);
  const probe = el('div', { class: 'card-item probe' });
  probe.style.width = `${width}px`;
  inner.append(probe);
  const highest = () => Math.max(...longest.map(({ row, column }) => { probe.replaceChildren(verdictLine(row, column)); return probe.firstElementChild.offsetHeight; }));
  inner.classList.remove('stacked');
  const together = highest();
  inner.classList.add('stacked');
  const apart = highest();
  probe.remove();
  return together < 30 ? [together, false] : [apart, true];
}

function measureList() {
  const gallery = list.view === 'gallery';
  const width = inner.clientWidth;
  const smallest = pictured ? (narrow.matches && longestName <= 4 ? 76 : 104) : 180;
  list.columns = gallery ? Math.max(1, Math.floor((width + GAP) / (smallest + GAP))) : 1;
  list.cardWidth = (width - GAP * (list.columns - 1)) / list.columns;
  list.rowHeight = gallery ? (pictured ? Math.ceil(list.cardWidth) - 4 : TEXT_HEIGHT) + namesHeight(list.cardWidth) + (crowd ? VOTE_LINE : 0) + 31 + GAP : 44;
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
  if (!item) return;
  moveTo(Number(item.dataset.position));
  if (narrow.matches) openDetail();
});

// ---- The example under review: what it is, what it is compared with, and the decision ----

const detail = byId('detail');
const where = el('p', { class: 'where' });
const stage = el('div', { class: 'stage' });
const verdict = el('div', { class: 'verdict' });
const beside = el('div', { class: 'beside' });
const reason = el('p', { class: 'reason' });
const scores = el('p', { class: 'hint' });
const notes = el('div', { class: 'notes' });

function action(name, key, run) {
  const label = el('span');
  return { label, name, node: el('button', { type: 'button', class: `action ${name}`, onclick: run }, label, el('kbd', { 'aria-hidden': 'true', text: key })) };
}
const actions = {
  keep: action('keep', 'K', () => review('keep')),
  relabel: action('relabel', 'R', () => relabel()),
  ambiguous: action('ambiguous', 'A', () => review('ambiguous')),
  skip: action('skip', 'S', () => review('skip')),
  other: action('other', 'C', () => openChooser()),
};

function buildDetail() {
  const step = (text, words, distance) => el('button', { type: 'button', class: 'icon', 'aria-label': words, text, onclick: () => moveTo(list.current + distance) });
  detail.append(
    el('div', { class: 'detail-head' }, el('button', { type: 'button', class: 'close', text: '‹ List', onclick: closeDetail }),
      where, step('←', 'Previous example', -1), step('→', 'Next example', 1)),
    stage, verdict, el('div', { class: 'actions', role: 'group', 'aria-label': 'Decision' }, ...Object.values(actions).map(({ node }) => node)),
    beside, notes, el('div', { class: 'more' }, reason, el('details', {}, el('summary', { text: 'Scores' }), scores)));
}

// On a phone the example covers the page, its buttons at the lower edge, until it is closed.
function openDetail() {
  if (list.items.length) document.body.classList.add('reviewing');
  detail.scrollTop = 0;
}

function closeDetail() {
  document.body.classList.remove('reviewing');
  drawList();
}

function bar(words, name, probability, kind) {
  const fill = el('i');
  fill.style.width = `${Math.max(100 * probability, 0.5)}%`;
  return el('div', { class: `bar ${kind}` }, el('span', { class: 'bar-words', text: words }), el('b', {}, ...breakable(name)),
    el('span', { class: 'bar-share', text: percent(probability) }), el('span', { class: 'track', 'aria-hidden': 'true' }, fill));
}

// The given and the suggested class, and what else is among the three likeliest.
function bars(i) {
  if (tags) return [el('p', { class: 'tag-line' }, ...chips(given[i])), el('p', { class: 'hint', text: 'How likely these tags are:' }), ...likeliest(i).map((pair) => tagBar(i, ...pair))];
  const others = likeliest(i).filter(([label]) => label !== given[i] && label !== suggested[i]);
  return [
    bar('Labelled', classes[given[i]], givenProbability(i), 'given'),
    given[i] === suggested[i] ? '' : bar('Looks like', classes[suggested[i]], suggestedProbability(i), 'suggested'),
    ...others.slice(0, given[i] === suggested[i] ? 2 : 1).map(([label, share], k) => bar(k ? '' : 'Or perhaps', classes[label], share, 'other'))];
}

// How likely it is that an example should have a tag.
function tagBar(i, k, probability) {
  const [has, should] = [given[i], suggested[i]].map((label) => tagsOf(label).has(tags.names[k]));
  return bar(has === should ? (has ? 'Has' : 'Lacks') : (has ? 'Remove' : 'Add'), tags.names[k], probability, has === should ? 'other' : 'suggested');
}

function drawDetail() {
  detail.hidden = list.items.length === 0;
  if (detail.hidden) return;
  const i = currentExample();
  const same = given[i] === suggested[i];
  const rows = Array.isArray(rowOf(i)) && !tileOf.has(i);
  detail.className = `detail ${rows ? 'rows' : hasContent ? '' : 'bare'}`;
  where.replaceChildren(el('b', { text: number.format(list.current + 1) }), ` of ${number.format(list.items.length)}`, el('span', { class: 'id', text: audit.rows ? `row ${audit.rows[i]}, id ${idOf(i)}` : `id ${idOf(i)}`, title: idOf(i) }));
  stage.hidden = !hasContent || rows;
  if (!rows) stage.replaceChildren(tileOf.has(i) ? el('button', { type: 'button', class: 'zoom', 'aria-label': 'Enlarge the picture', onclick: () => zoom(i) }, content(i)) : content(i),
    tileOf.has(i) && plainText(i) ? el('p', { class: 'text', text: plainText(i) }) : '');
  verdict.replaceChildren(...bars(i), voteLine(i), clean ? el('p', { class: 'truth' }, 'True label: ', el('b', { text: classes[clean[i]] }), clean[i] === given[i] ? ' (the given label is right)' : '') : '');
  const near = similar.get(i) ?? { given: [], suggested: [] };
  beside.replaceChildren(...(rows ? [comparison(i, near, same)] : neighbours(i, near, same)));
  reason.replaceChildren(marker(quadrant[i]), el('b', { text: capital(quadrants[quadrant[i]]) }), ` ${QUADRANT_WORDS[quadrant[i]]}`);
  scores.textContent = `Disagreement ${brief(disagreement[i])}, rank ${number.format(bySuspicion.rank[i] + 1)}; ambiguity ${brief(ambiguity[i])}, rank ${number.format(byAmbiguity.rank[i] + 1)}`;
  notes.replaceChildren(...findingNotes(i));
  drawActions(i, same);
}

function zoom(i) {
  byId('zoom').replaceChildren(thumbnail(i), el('p', { class: 'hint', text: idOf(i) }));
  byId('zoom').showModal();
}
byId('zoom').addEventListener('click', () => byId('zoom').close());

// With tags: those that agree with the example on its worst one, and those that do not.
function similarWords(i, label) {
  if (!tags) return ['Most similar “', ...breakable(classes[label]), '”'];
  const has = tagsOf(given[i]).has(worstTag(i)) === (label === given[i]);
  return [`Most similar ${has ? 'with' : 'without'} “`, ...breakable(worstTag(i)), '”'];
}

// The examples most like this one: those with its label, and those with the suggested one.
function neighbours(i, near, same) {
  const group = (label, some, kind) => (some.length ? [el('div', { class: `near ${kind}` }, el('h3', {}, ...similarWords(i, label)),
    el('div', { class: 'near-items' }, ...some.map((other) => el('button', { type: 'button', class: 'neighbour', title: idOf(other), onclick: () => showExample(other) }, content(other)))))] : []);
  return [...group(given[i], near.given, 'given'), ...(same ? [] : group(suggested[i], near.suggested, 'suggested'))];
}

// A table row beside the rows most like it; what is unusual for its label comes first.
function comparison(i, near, same) {
  const others = [...near.given, ...(same ? [] : near.suggested)];
  const head = (label, some, kind) => (some.length ? [el('th', { colspan: some.length, scope: 'colgroup', class: kind }, ...similarWords(i, label))] : []);
  const cells = (k) => [i, ...others].map((other) => el('td', other === i && unusual(i, k) ? { class: 'unusual', title: usualWords(i, k) } : {}, worded(rowOf(other)?.[k])));
  const marked = columnsOf(i).filter((k) => unusual(i, k));
  return el('div', { class: 'compare', tabindex: '0' }, el('table', {},
    el('thead', {}, el('tr', {}, el('td'), el('th', { scope: 'col', text: 'This row' }), ...head(given[i], near.given, 'given'), ...(same ? [] : head(suggested[i], near.suggested, 'suggested')))),
    el('tbody', {}, ...columnsOf(i).map((k) => el('tr', {}, el('th', { scope: 'row', text: texts.keys[k], title: texts.keys[k] }), ...cells(k))))),
  marked.length ? el('p', { class: 'hint' }, el('span', { class: 'unusual', text: 'Marked' }), `: unusual for “${classes[given[i]]}”`) : null);
}

const MOST_COPIES = 8;

// What else was found about an example, its near duplicates to be opened.
function findingNotes(i) {
  const all = [];
  const others = copiesOf(i);
  if (others.length) {
    all.push(el('p', {}, el('b', { text: conflicting(i) ? 'Near duplicates with different labels:' : 'Near duplicates:' })),
      el('div', { class: 'copies' }, ...others.slice(0, MOST_COPIES).map((other) => el('button', { type: 'button', class: 'copy', onclick: () => showExample(other) },
        tileOf.has(other) ? thumbnail(other) : null, el('span', { text: `${idOf(other)}: ` }, el('b', { text: classes[given[other]] }))))));
    if (others.length > MOST_COPIES) all.push(el('p', { text: `and ${number.format(others.length - MOST_COPIES)} more` }));
  }
  if (leakOf.has(i)) all.push(el('p', {}, el('b', { text: 'In the other split: ' }), `id ${leakOf.get(i).id}, labelled “${leakOf.get(i).label}”`));
  if (outlierScore.has(i)) all.push(el('p', {}, el('b', { text: 'Outlier: ' }), `${brief(outlierScore.get(i))} times as far from its neighbours as examples may be`));
  if (rareClass.has(given[i])) all.push(el('p', {}, el('b', { text: 'Rare class: ' }), `${number.format(classCounts[given[i]])} examples of “${classes[given[i]]}”`));
  return all;
}

function drawActions(i, same) {
  const decision = decisions.get(i);
  const relabelled = typeof decision === 'number';
  const other = relabelled && decision !== suggested[i];
  actions.keep.label.replaceChildren(...(tags ? ['Keep the tags'] : ['Keep “', ...breakable(classes[given[i]]), '”']));
  actions.relabel.label.replaceChildren(...(tags ? ['Accept ', ...changes(given[i], suggested[i])] : ['Relabel as “', ...breakable(classes[suggested[i]]), '”']));
  actions.relabel.node.hidden = same;
  actions.ambiguous.label.textContent = 'Ambiguous';
  actions.skip.label.textContent = 'Skip';
  actions.other.label.textContent = other ? `${tags ? 'Tags:' : 'Relabelled as'} “${classes[decision]}”` : tags ? 'Edit tags …' : 'Other …';
  const chosen = other ? 'other' : decisionName(decision);
  for (const { name, node } of Object.values(actions)) node.setAttribute('aria-pressed', String(name === chosen));
}

// The chooser of another class: type to narrow, arrows to move, Enter to take.
const chooser = byId('chooser');
const chooserInput = byId('chooser-input');
const edited = new Set(); // the tags of the example under review, as they are switched
let offered = [];
let option = 0;

function openChooser() {
  if (!list.items.length) return;
  chooserInput.value = '';
  const decision = decisions.get(currentExample());
  edited.clear();
  if (tags) tagsOf(typeof decision === 'number' ? decision : given[currentExample()]).forEach((tag) => edited.add(tag));
  drawOptions();
  chooser.showModal();
}

function drawOptions() {
  const wanted = chooserInput.value.trim().toLowerCase();
  const all = options.map((_, k) => k).filter((k) => tags || k !== given[currentExample()]);
  offered = all.filter((k) => options[k].toLowerCase().includes(wanted)).slice(0, 100);
  option = Math.max(0, Math.min(option, offered.length - 1));
  const exact = offered.findIndex((k) => options[k].toLowerCase() === wanted);
  if (wanted && exact >= 0) option = exact;
  byId('chooser-list').replaceChildren(...offered.map((k, n) => el('div', {
    role: 'option', id: `option-${k}`, 'aria-selected': String(n === option), 'aria-checked': tags ? String(edited.has(options[k])) : null, onclick: () => takeOption(k),
  }, el('span', { text: options[k] }), (tags ? looksLike(currentExample(), k) : k === suggested[currentExample()]) ? el('span', { class: 'hint', text: tags ? 'change suggested' : 'suggested' }) : null, classKeys[k] ? el('kbd', { text: classKeys[k] }) : null)));
  if (offered.length) chooserInput.setAttribute('aria-activedescendant', `option-${offered[option]}`);
  byId('chooser-list').children[option]?.scrollIntoView({ block: 'nearest' });
}

function takeOption(k) {
  if (!tags) {
    chooser.close();
    relabel(k);
    return;
  }
  if (!edited.delete(options[k])) edited.add(options[k]);
  drawOptions();
}

function saveTags() {
  const label = numberOf(edited);
  chooser.close();
  review(label === given[currentExample()] ? 'keep' : label);
}
byId('chooser-save').addEventListener('click', saveTags);

chooserInput.addEventListener('input', () => { option = 0; drawOptions(); });
chooserInput.addEventListener('keydown', (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) option += step;
  else if (event.key !== 'Enter') return;
  event.preventDefault();
  if (step) drawOptions();
  else if (tags && (event.ctrlKey || event.metaKey)) saveTags();
  else if (offered.length) takeOption(offered[option]);
});

// ---- Many at once: the undecided of the list, of one pair of labels or of all, from a probability on ----

const bulk = byId('bulk');
const bulkPair = byId('bulk-pair');
const bulkShare = byId('bulk-share');

function openBulk() {
  const times = new Map();
  for (const i of bulkExamples(-1, 0)) times.set(pairOf(i), (times.get(pairOf(i)) ?? 0) + 1);
  const pairs = [...times].sort((a, b) => b[1] - a[1]).slice(0, MOST_OPTIONS);
  const words = (pair) => { const both = [Math.floor(pair / classes.length), pair % classes.length]; return tags ? changeWords(...both) : both.map((k) => classes[k]).join(' → '); };
  fill('bulk-pair', [[-1, 'Any'], ...pairs.map(([pair, some]) => [pair, `${words(pair)} (${number.format(some)})`])]);
  bulkShare.value = 90;
  while (!bulkChosen().length && Number(bulkShare.value) > 0) bulkShare.value -= 10;
  drawBulk();
  bulk.showModal();
}

const pairOf = (i) => given[i] * classes.length + suggested[i];
const bulkExamples = (pair, least) => Array.from(list.items).filter((i) => given[i] !== suggested[i] && !decisions.has(i)
  && (pair < 0 || pairOf(i) === pair) && suggestedProbability(i) >= least);
const bulkChosen = () => bulkExamples(Number(bulkPair.value), Number(bulkShare.value) / 100);

function drawBulk() {
  const some = bulkChosen().length;
  byId('bulk-least').textContent = `${bulkShare.value}\u00a0%`;
  byId('bulk-run').textContent = `Relabel ${number.format(some)}`;
  byId('bulk-run').disabled = some === 0;
}

function runBulk() {
  const some = bulkChosen();
  decide(some.map((i) => [i, suggested[i]]));
  bulk.close();
  change(() => {});
  notice(`Relabelled ${number.format(some.length)} as suggested. Undo takes all of them back.`);
}

byId('bulk-button').addEventListener('click', openBulk);
byId('bulk-run').addEventListener('click', runBulk);
for (const control of [bulkPair, bulkShare]) control.addEventListener('input', drawBulk);

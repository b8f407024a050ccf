// What an example looks like: its thumbnail, its text, or its table row.

const thumbnails = audit.thumbnails;
const texts = audit.texts;
const tileOf = new Map(thumbnails ? thumbnails.index.map((example, tile) => [example, tile]) : []);
const sheetImages = new Map();

// A sheet is decoded when one of its tiles is first seen.
function sheetImage(number) {
  if (!sheetImages.has(number)) {
    const image = new Image();
    image.src = URL.createObjectURL(new Blob([decodeBase64(thumbnails.sheets[number])], { type: thumbnails.type }));
    sheetImages.set(number, image.decode().then(() => image));
  }
  return sheetImages.get(number);
}

function thumbnail(example) {
  const tile = tileOf.get(example);
  const size = thumbnails.tile;
  const canvas = el('canvas', {
    width: size, height: size, role: 'img', class: size <= 64 ? 'thumb crisp' : 'thumb', 'aria-label': `Image ${idOf(example)}`,
  });
  const place = tile % thumbnails.perSheet;
  const x = (place % thumbnails.columns) * size;
  const y = Math.floor(place / thumbnails.columns) * size;
  sheetImage(Math.floor(tile / thumbnails.perSheet))
    .then((image) => canvas.getContext('2d').drawImage(image, x, y, size, size, 0, 0, size, size));
  return canvas;
}

function rowOf(example) {
  return texts ? texts.rows[example] : null;
}

const shown = (value) => (value === null || value === undefined ? '–' : String(value));

// One line of plain text, for the table and for the search.
function plainText(example) {
  const row = rowOf(example);
  if (row === null || row === undefined) return '';
  return Array.isArray(row) ? row.map((value, k) => `${texts.keys[k]}: ${shown(value)}`).join(' · ') : row;
}

// `most` limits the fields of a table row: a card shows the first few, the detail all.
function content(example, most = Infinity) {
  if (tileOf.has(example)) return thumbnail(example);
  const row = rowOf(example);
  if (Array.isArray(row)) {
    const fields = row.slice(0, most).map((value, k) => el('div', {}, el('dt', { text: texts.keys[k] }), el('dd', { text: shown(value) })));
    return el('dl', { class: 'fields' }, ...fields);
  }
  if (row) return el('p', { class: 'text', text: row });
  return el('p', { class: 'nothing', text: thumbnails ? `No thumbnail: only the first ${number.format(tileOf.size)} have one` : `Example ${idOf(example)}` });
}

const hasContent = Boolean(thumbnails || texts);

// Draws the plots of a report from the data in the page. No library, nothing from outside; SVG at the width that there is, so
// that text has its size on a phone as well.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const PAGE = 4096, MIB = 1 << 20;
const NS = 'http://www.w3.org/2000/svg';
const seconds = data.series.at_ms.map((ms) => ms / 1000);

function element(name, attributes, parent, text) {
  const e = document.createElementNS(NS, name);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  if (text !== undefined) e.textContent = text;
  if (parent) parent.appendChild(e);
  return e;
}

// ---- numbers for people

function short(value) {
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e9) return (value / 1e9).toPrecision(3) + 'G';
  if (size >= 1e6) return (value / 1e6).toPrecision(3) + 'M';
  if (size >= 1e4) return (value / 1e3).toPrecision(3) + 'k';
  return size >= 100 ? String(Math.round(value)) : String(+value.toPrecision(3));
}

function bytes(value) {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1000 && unit < 4) { value /= 1024; unit++; }
  return +value.toPrecision(3) + ' ' + units[unit];
}

function time(s) {
  if (s < 60) return +s.toFixed(s < 10 ? 1 : 0) + ' s';
  const minutes = Math.floor(s / 60);
  if (s < 3600) return minutes + ':' + String(Math.floor(s % 60)).padStart(2, '0');
  const hours = Math.floor(s / 3600);
  return hours + ' h ' + String(minutes % 60).padStart(2, '0');
}

function duration(ns) {
  if (ns < 1e3) return ns + ' ns';
  if (ns < 1e6) return +(ns / 1e3).toPrecision(3) + ' µs';
  if (ns < 1e9) return +(ns / 1e6).toPrecision(3) + ' ms';
  return +(ns / 1e9).toPrecision(3) + ' s';
}

// Round steps: of powers of ten, of two for bytes, of a clock for time.
function ticks(most, count, kind) {
  const raw = most / count || 1;
  let step;
  if (kind === 'time' && raw > 1) {
    step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].find((s) => s >= raw) ||
      Math.ceil(raw / 86400) * 86400;
  } else if (kind === 'bytes') {
    step = Math.pow(2, Math.ceil(Math.log2(raw)));
  } else {
    const ten = Math.pow(10, Math.floor(Math.log10(raw)));
    step = ten * [1, 2, 5, 10].find((f) => f * ten >= raw * 0.999);
  }
  const all = [];
  for (let at = 0; at <= most * 1.0001; at += step) all.push(at);
  return all;
}

// ---- a frame with axes and a legend, of a plot over time or over buckets

function frame(id, legend, format) {
  const box = document.getElementById(id);
  box.textContent = '';
  const list = document.createElement('ul');
  list.className = 'legend';
  const values = legend.map((entry) => {
    const item = document.createElement('li'), colour = document.createElement('i'), value = document.createElement('b');
    colour.style.background = `var(--${entry.colour})`;
    item.append(colour, entry.name + ' ', value);
    list.appendChild(item);
    return value;
  });
  box.appendChild(list);
  const width = Math.max(box.clientWidth, 240), height = width < 500 ? 190 : 240;
  const svg = element('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img' }, box);
  element('title', {}, svg, box.dataset.title);
  return { box, svg, width, height, left: 62, right: 12, top: 8, bottom: 24, show(i) {
    values.forEach((v, k) => { v.textContent = i === null ? '' : format(legend[k].values[i]); });
  } };
}

function axis(f, most, kind, format) {
  const y = (value) => f.height - f.bottom - (value / most) * (f.height - f.top - f.bottom);
  for (const at of ticks(most, 4, kind)) {
    element('line', { class: 'grid', x1: f.left, x2: f.width - f.right, y1: y(at), y2: y(at) }, f.svg);
    element('text', { x: f.left - 6, y: y(at) + 4, 'text-anchor': 'end' }, f.svg, format(at));
  }
  return y;
}

function pointer(f, indexOf, xOf) {
  const line = element('line', { class: 'cursor', y1: f.top, y2: f.height - f.bottom, visibility: 'hidden' }, f.svg);
  f.svg.addEventListener('pointermove', (event) => {
    const at = (event.clientX - f.svg.getBoundingClientRect().left) * f.width / f.svg.clientWidth;
    const i = indexOf(at);
    line.setAttribute('x1', xOf(i));
    line.setAttribute('x2', xOf(i));
    line.setAttribute('visibility', 'visible');
    f.show(i);
  });
  f.svg.addEventListener('pointerleave', () => { line.setAttribute('visibility', 'hidden'); f.show(null); });
}

// series: { name, colour, values, area: stacked, dashed }
function overTime(id, series, kind, format) {
  const f = frame(id, series, format);
  const points = seconds.length, end = Math.max(seconds[points - 1] || 0, 0.001);
  const x = (s) => f.left + (s / end) * (f.width - f.left - f.right);
  const base = new Array(points).fill(0);
  const stacked = series.map((one) => {
    if (!one.area) return null;
    const low = base.slice();
    one.values.forEach((value, i) => { base[i] += value; });
    return { low, high: base.slice() };
  });
  let most = Math.max(0, ...base);
  series.filter((one) => !one.area).forEach((one) => { for (const v of one.values) if (v > most) most = v; });
  const y = axis(f, most * 1.04 || 1, kind, format);
  for (const at of ticks(end, f.width < 500 ? 4 : 8, 'time')) {
    element('text', { x: x(at), y: f.height - 6, 'text-anchor': at === 0 ? 'start' : x(at) > f.width - 40 ? 'end' : 'middle' },
      f.svg, time(at));
  }
  const path = (values) => values.map((v, i) => `${x(seconds[i]).toFixed(1)},${y(v).toFixed(1)}`);
  series.forEach((one, k) => {
    const colour = `var(--${one.colour})`;
    if (one.area) {
      const d = 'M' + path(stacked[k].high).concat(path(stacked[k].low).reverse()).join('L') + 'Z';
      element('path', { d, 'data-series': one.name, style: `fill:${colour}` }, f.svg);
    } else {
      element('path', { d: 'M' + path(one.values).join('L'), 'data-series': one.name, fill: 'none',
        style: `stroke:${colour}`, 'stroke-width': 2, 'stroke-dasharray': one.dashed ? '5 4' : 'none' }, f.svg);
    }
  });
  pointer(f, (at) => {
    const s = (at - f.left) / (f.width - f.left - f.right) * end;
    let i = 0;
    while (i + 1 < points && Math.abs(seconds[i + 1] - s) <= Math.abs(seconds[i] - s)) i++;
    return i;
  }, (i) => x(seconds[i]));
}

// The growth of a total in a second, at each sample since the one before.
function rate(totals) {
  return totals.map((total, i) => {
    const span = i ? seconds[i] - seconds[i - 1] : 0;
    return span > 0 ? Math.max(0, total - totals[i - 1]) / span : 0;
  });
}

const KINDS = [['first_touch', 'first touch', 'outside'], ['limbo_hit', 'hit in limbo', 'limbo'],
  ['pool_load', 'load from the pool', 'pool'], ['store_load', 'load from the store', 'store']];

function latency(id) {
  const all = KINDS.map(([key]) => data.latency[key]), upper = data.latency_upper_ns;
  const used = upper.map((_, i) => all.some((counts) => counts[i] > 0));
  const first = Math.max(0, used.indexOf(true) - 2), last = Math.min(upper.length - 1, used.lastIndexOf(true) + 2);
  const shown = upper.slice(first, last + 1);
  const series = KINDS.map(([, name, colour], k) => ({ name, colour, values: all[k].slice(first, last + 1) }));
  const f = frame(id, series, short);
  const most = Math.max(...shown.map((_, i) => series.reduce((sum, one) => sum + one.values[i], 0)));
  const y = axis(f, most * 1.04, '', short);
  const step = (f.width - f.left - f.right) / shown.length;
  const x = (i) => f.left + i * step;
  shown.forEach((ns, i) => {
    let low = 0;
    for (const one of series) {
      if (one.values[i] > 0) {
        element('rect', { x: x(i) + 0.5, width: Math.max(step - 1, 1), y: y(low + one.values[i]),
          height: Math.max(y(low) - y(low + one.values[i]), 0.5), 'data-series': one.name,
          style: `fill:var(--${one.colour})` }, f.svg);
      }
      low += one.values[i];
    }
  });
  // Where a decade lies between buckets, on the scale of powers of two.
  const place = (ns) => shown.findIndex((end) => end === null || end >= ns);
  let free = 0;
  for (let ns = 1e3; ns < 1e10; ns *= 10) {
    const i = place(ns);
    if (i > 0 && x(i) > free && x(i) < f.width - 30) {
      element('text', { x: x(i), y: f.height - 6, 'text-anchor': 'middle' }, f.svg, duration(ns));
      free = x(i) + 50;
    }
  }
  const where = element('text', { x: f.width - f.right, y: f.top + 10, 'text-anchor': 'end' }, f.svg);
  pointer(f, (at) => {
    const i = Math.min(shown.length - 1, Math.max(0, Math.floor((at - f.left) / step)));
    where.textContent = shown[i] === null ? 'longer' : 'up to ' + duration(shown[i]);
    return i;
  }, (i) => x(i) + step / 2);
}

function draw() {
  const s = data.series, pages = (values) => values.map((v) => v * PAGE);
  const times = (v) => (v === null ? 'none' : +v.toPrecision(3) + '×');
  overTime('memory', [
    { name: 'resident', colour: 'resident', area: true, values: pages(s.resident_pages) },
    { name: 'limbo', colour: 'limbo', area: true, values: pages(s.limbo_pages) },
    { name: 'pool', colour: 'pool', area: true, values: pages(s.pool_pages) },
    { name: 'not managed', colour: 'outside', area: true, values: pages(s.outside_pages) },
    { name: 'reserved', colour: 'reserved', area: true, values: pages(s.reserved_pages) },
    { name: 'limit', colour: 'limit', values: pages(s.limit_pages) },
    { name: 'needed without uzswap', colour: 'needed', dashed: true, values: pages(s.needed_pages) },
  ], 'bytes', bytes);
  overTime('faults', KINDS.map(([key, name, colour]) => ({ name, colour, area: true, values: rate(s.faults[key]) })),
    '', short);
  overTime('disk', [
    { name: 'written', colour: 'pool', values: pages(s.written_pages) },
    { name: 'read back', colour: 'resident', dashed: true, values: pages(s.read_pages) },
  ], 'bytes', bytes);
  overTime('ratio', [
    { name: 'needed by used', colour: 'needed', 
      // A run that fits needs what it uses: reservations are no use.
      values: s.needed_pages.map((n, i) => Math.max(1, n / Math.max(s.used_pages[i], 1))) },
    { name: 'stored pages by pool', colour: 'pool', dashed: true,
      values: s.stored_pages.map((n, i) => (s.pool_pages[i] ? n / s.pool_pages[i] : 0)) },
  ], '', times);
  if (document.getElementById('latency')) latency('latency');
}

let drawn = 0;
addEventListener('resize', () => {
  if (document.body.clientWidth !== drawn) { drawn = document.body.clientWidth; draw(); }
});
drawn = document.body.clientWidth;
if (seconds.length > 1) draw();
document.body.dataset.ready = 'yes';

// node: Maps, objects, typed arrays, Buffers, strings, sorting. Argument: scale (1.0 is about 200 MiB).
'use strict';
const { createHash } = require('crypto');
const { deflateSync, inflateSync } = require('zlib');

const count = Math.floor(120000 * Number(process.argv[2]));
let state = 12345;
const random = () => (state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff);

const map = new Map();
const objects = [];
for (let i = 0; i < count; i++) {
  const key = `${random().toString(16)}-${i}`;
  map.set(key, { id: i, name: key.split('').reverse().join(''), tags: [i % 7, i % 11, `t${i % 13}`], values: new Array(60 + (i % 30)).fill(i) });
  if (i % 3 === 0) objects.push(map.get(key));
}
objects.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.id - b.id));
const hash = createHash('sha256');
for (const o of objects) hash.update(`${o.id}${o.name}${o.tags.join()}${o.values.join()}`);

const buffers = [];
for (let i = 0; i < 400; i++) {
  const buffer = Buffer.alloc(65536);
  for (let j = 0; j < buffer.length; j += 4) buffer.writeInt32LE(i * 31 + (j >> 6), j);
  buffers.push(buffer);
}
for (const buffer of buffers) {
  if (!inflateSync(deflateSync(buffer.subarray(0, 8192))).equals(buffer.subarray(0, 8192))) process.exit(1);
  hash.update(buffer);
}
const numbers = Float64Array.from({ length: count }, () => random() / 3);
numbers.sort();
hash.update(Buffer.from(numbers.buffer));
const text = JSON.stringify(objects.slice(0, count / 6));
hash.update(JSON.stringify(JSON.parse(text)));
for (const [key, value] of map) if (value.id % 2) map.delete(key);
console.log(map.size, text.length, hash.digest('hex'));

// node: two worker threads, each with maps, objects and strings of its own, and one buffer that they
// share. Argument: thousands of objects of each worker.
'use strict';
const { createHash } = require('crypto');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

const WORKERS = 2;

function work({ number, count, shared }) {
  let state = 12345 + number;
  const random = () => (state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff);
  const map = new Map();
  for (let i = 0; i < count; i++) {
    const key = `${random().toString(16)}-${i}`;
    map.set(key, { id: i, key, tags: [i % 7, `t${i % 13}`], values: new Array(40 + (i % 30)).fill(i) });
  }
  const words = new Int32Array(shared);
  const part = words.length / WORKERS;
  for (let i = 0; i < part; i++) words[number * part + i] = random() & 0xffff;
  const hash = createHash('sha256');
  for (let round = 0; round < 2; round++) {
    const objects = [...map.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
    for (const o of objects) hash.update(`${o.id}${o.key}${o.values.length}${o.tags.join()}`);
    for (const o of objects) if (o.id % 5 === round) map.delete(o.key);
  }
  const text = JSON.stringify([...map.values()].slice(0, count / 8));
  hash.update(JSON.stringify(JSON.parse(text)));
  return `${number} ${map.size} ${hash.digest('hex')}`;
}

if (isMainThread) {
  const count = Number(process.argv[2]) * 1000;
  const shared = new SharedArrayBuffer(8 << 20);
  const results = Array.from({ length: WORKERS }, (_, number) => new Promise((resolve, reject) => {
    const worker = new Worker(__filename, { workerData: { number, count, shared } });
    worker.on('message', resolve);
    worker.on('error', reject);
  }));
  Promise.all(results).then((lines) => {
    console.log(lines.join('\n'));
    console.log(createHash('sha256').update(Buffer.from(shared)).digest('hex'));
  });
} else {
  parentPort.postMessage(work(workerData));
}

// A node heap: records, strings, maps, buffers, what V8 itself keeps. Says so, then waits.
let seed = 1;
const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
const words = require('module').builtinModules
  .flatMap((name) => { try { return Object.keys(require(name)).map(String); } catch { return []; } });
const records = [];
for (let i = 0; i < 120000; i++) {
  records.push({
    id: i, name: words[random(words.length)] + i, tags: [words[random(words.length)], words[random(words.length)]],
    score: random(1000000) / 7, parent: records[random(Math.max(i, 1))] ?? null, seen: new Date(i * 1e6),
  });
}
const byName = new Map(records.map((record) => [record.name, record]));
const text = JSON.stringify(records.slice(0, 40000).map(({ parent, ...rest }) => rest));
const again = JSON.parse(text);
const buffers = Array.from({ length: 64 }, (_, i) => Buffer.from(text.slice(i * 32768, (i + 1) * 32768)));
const numbers = new Float64Array(500000);
console.log('ready');
process.stdin.on('data', () => process.exit(records.length && byName.size && again.length && buffers.length && numbers[0]));

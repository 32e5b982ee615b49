// Node's fs on many files at once: writes, syncs, reads back, stats, all through
// libuv, which with UV_USE_IO_URING=1 hands them to io_uring.
//
//     node files.js FOLDER COUNT
'use strict';

const assert = require('node:assert');
const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');

const folder = process.argv[2];
const count = Number(process.argv[3]);

// All lengths up to a few pages, so that short and long requests mix.
function contentsOf(index) {
  return crypto.createHash('sha512').update(String(index)).digest().toString('hex').repeat(1 + index % 97);
}

async function oneFile(index) {
  const name = path.join(folder, `file-${index}`);
  const contents = contentsOf(index);
  const file = await fs.promises.open(name, 'w+');
  try {
    await file.writeFile(contents);
    await (index % 2 ? file.sync() : file.datasync());
    assert.strictEqual((await file.stat()).size, contents.length);
    const buffer = Buffer.alloc(contents.length);
    const { bytesRead } = await file.read(buffer, 0, buffer.length, 0);
    assert.strictEqual(buffer.toString('utf8', 0, bytesRead), contents);
  } finally {
    await file.close();
  }
  assert.strictEqual(await fs.promises.readFile(name, 'utf8'), contents);
  assert.strictEqual((await fs.promises.stat(name)).size, contents.length);
  assert.strictEqual((await fs.promises.lstat(name)).isFile(), true);
  await assert.rejects(fs.promises.stat(name + '-missing'), { code: 'ENOENT' });
  return contents.length;
}

async function byStream(index) {
  const parts = [];
  for await (const part of fs.createReadStream(path.join(folder, `file-${index}`), { highWaterMark: 1000 })) {
    parts.push(part);
  }
  assert.strictEqual(Buffer.concat(parts).toString(), contentsOf(index));
}

async function main() {
  const indices = [...Array(count).keys()];
  const lengths = await Promise.all(indices.map(oneFile));
  await Promise.all(indices.map(byStream));
  // Timers and the ring share one event loop: neither may starve the other.
  const begin = process.hrtime.bigint();
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.ok(process.hrtime.bigint() - begin >= 19_000_000n);
  console.log(`${count} files, ${lengths.reduce((sum, length) => sum + length, 0)} bytes`);
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});

// BullMQ for Node: 100 jobs at a time; finished jobs are removed. Two processes are two workers.
const {createRequire} = require("module");
const {spawn} = require("child_process");
const fs = require("fs");
const readline = require("readline");
const {Queue, Worker} = createRequire(process.env.COMPARE_MODULES + "/")("bullmq");
const [role, mode, number] = process.argv.slice(2);
const connection = {path: process.env.COMPARE_SOCKET, maxRetriesPerRequest: null};
const opts = {removeOnComplete: true};
const stamps = process.env.COMPARE_STAMPS;
const stamped = () => process.hrtime.bigint().toString().padStart(20, "0").padEnd(200, "x");

async function produce() {
  const queue = new Queue("q", {connection});
  const single = (body) => queue.add("work", {body}, opts);
  const lines = readline.createInterface({input: process.stdin})[Symbol.asyncIterator]();
  await single(stamped());
  console.log("ready");
  if (mode === "ping") {
    while (!(await lines.next()).done) await single(stamped());
  } else {
    await lines.next();
    const text = "x".repeat(200);
    const send = async (count) => { for (let i = 0; i < count; i++) await single(text); };
    if (mode === "batch" || mode === "fill") {
      for (let i = 0; i < number / 100; i++)
        await queue.addBulk(Array.from({length: 100}, () => ({name: "work", data: {body: text}, opts})));
    } else if (mode === "tasks") {
      await Promise.all(Array.from({length: 100}, () => send(number / 100)));
    } else await send(Number(number));
    console.log("done");
    await lines.next();
  }
  process.exit(0);
}

function consume() {
  new Worker("q", async (job) => {
    if (stamps) fs.appendFileSync(stamps, `${process.hrtime.bigint() - BigInt(job.data.body.slice(0, 20))}\n`);
  }, {connection, concurrency: mode === "single" ? 1 : 100});
}

if (role === "produce") produce();
else {
  if (mode === "workers") spawn(process.execPath, [__filename, "consume", "async", "0"], {stdio: "inherit"});
  consume();
}

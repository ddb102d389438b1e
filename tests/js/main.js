// node main.js URL VERSION [CA-FILE]: runs the scenario and prints the steps that held, as JSON.

const fs = require("node:fs");
const mqtt = require("mqtt");
const { run } = require("./scenario.js");

const [url, version, ca] = process.argv.slice(2);
const options = ca ? { ca: fs.readFileSync(ca) } : {};

run({ connect: mqtt.connect, Buffer }, url, Number(version), options).then(
  (steps) => {
    console.log(JSON.stringify(steps));
    process.exit(0);
  },
  (error) => {
    console.error(`${error.message}`);
    process.exit(1);
  },
);

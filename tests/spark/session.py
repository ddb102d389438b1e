"""A Spark session as the tests want it: small, quiet, on this machine only."""

from __future__ import annotations

import warnings
from pathlib import Path

from pyspark.sql import SparkSession

from starlingmq.spark import register

# A process that runs for seconds does not need optimized machine code, nor proof that Spark's classes are well-formed.
UNVERIFIED = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
JAVA = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {UNVERIFIED} -Dderby.stream.error.file=/dev/null"


def begin(master: str, directory: Path) -> SparkSession:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            SparkSession.builder.master(master)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", JAVA)
            # Of a standalone cluster: locally the driver is all there is.
            .config("spark.executor.memory", "512m")
            .config("spark.executor.extraJavaOptions", JAVA)
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(directory))
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session

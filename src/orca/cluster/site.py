"""Site: the settings of spark-defaults.conf, which the people who run a cluster write. Owns which of ours they replace.

Ours are only defaults where a site has its own, but for what ranks need. An argument of init_orca_context, such as
conf=, wins over both.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

AUTHENTICATE = "spark.authenticate"
YIELD = {
    *(AUTHENTICATE, "spark.executor.memoryOverhead", "spark.network.timeout", "spark.network.timeoutInterval"),
    *("spark.scheduler.minRegisteredResourcesRatio", "spark.scheduler.maxRegisteredResourcesWaitingTime"),
}
FORCED = {"spark.dynamicAllocation.enabled"}

log = logging.getLogger(__name__)


def has_spark_home() -> bool:
    """Return whether there is a Spark here; not in a container of YARN, where spark-submit has read the settings."""
    import pyspark

    return "SPARK_HOME" in os.environ or Path(pyspark.__file__).with_name("jars").is_dir()


def defaults_file(spark_home: str) -> Path:
    """Return the path of spark-defaults.conf, which need not be there."""
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(spark_home, "conf"), "spark-defaults.conf")


def site_settings(spark_home: str) -> dict[str, str]:
    """Return the settings of the site."""
    file = defaults_file(spark_home)
    lines = [line.strip() for line in file.read_text().splitlines()] if file.is_file() else []
    pairs = [re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and not line.startswith("#")]
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs}


def yielding(proposed: Mapping[str, str], site: Mapping[str, str]) -> dict[str, str]:
    """Return our settings without those for which the site has its own, unless ranks could not run with them.

    Args:
        proposed: Our settings.
        site: Those of the site.
    """
    settings = {key: value for key, value in proposed.items() if key not in YIELD or key not in site}
    if AUTHENTICATE not in site and site.get("spark.shuffle.service.enabled", "").lower() == "true":
        settings.pop(AUTHENTICATE, None)  # executors that authenticate cannot register at a service that does not
    for key in sorted(FORCED & settings.keys() & site.keys()):
        if settings[key] != site[key]:
            log.warning("the site's setting %s=%s is replaced by %s: ranks need it", key, site[key], settings[key])
    return settings

#!/bin/sh
# Runs archive.py on a cluster whose machines know nothing of rqttl: the package goes along in an archive, made of what is
# installed here. SPARK_MASTER says where; the arguments are those of archive.py.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYSPARK_DRIVER_PYTHON:-python3}" -m spark_connectors.bundle "$folder/rqttl.zip"
spark-submit \
  --master "${SPARK_MASTER:?the master, such as yarn or spark://host:7077}" \
  --py-files "$folder/rqttl.zip" \
  "$(dirname "$0")/archive.py" "$@"

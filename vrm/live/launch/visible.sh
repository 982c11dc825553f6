# Starts a task of a job with its own GPUs: sh visible.sh TABLE PROGRAM ARGUMENTS...
#
# The first word of a line of the table is the number of the task (rank) that it is for, or `*` for all. The
# other words are the variables to set. Values from the batch system or mpirun are removed first.
table=$1
shift
task=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}}}
found=
while read -r number settings; do
  case $number in
    "$task" | '*') found=yes; break ;;
  esac
done < "$table"
if [ -z "$found" ]; then
  echo "vrm: the GPUs of task $task are not known from $table" >&2
  exit 126
fi
unset CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK
set -f
for setting in $settings; do
  export "$setting"
done
set +f
exec "$@"

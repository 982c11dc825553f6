# Starts a task of a job with the GPUs that are its own: sh visible.sh TABLE PROGRAM ARGUMENTS...
#
# A line of the table is for the task (rank) whose number is its first word, or with `*` for all. The
# other words are what is set. What the batch system or mpirun has set goes before.
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

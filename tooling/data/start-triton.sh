#!/bin/sh
# Starts Triton on a model repository; models without weights are named first, with the command that makes them.
# Arguments are passed on to tritonserver. MODEL_REPOSITORY is /models unless set; TRITON_CONFIG_NAME,
# TRITON_MODEL_CONTROL, TRITON_CACHE_SIZE (bytes) and TRITON_CONTROL_KEY may be empty; TRITON_HOST is the address that
# the ports are opened on.
set -eu

repository=${MODEL_REPOSITORY:-/models}

# A model has weights when one of its version directories holds a file. An ensemble has none of its own.
has_weights() {
    grep -q '^ *platform *: *"ensemble"' "$1/config.pbtxt" && return 0
    for file in "$1"/[0-9]*/*; do
        [ -e "$file" ] && return 0
    done
    return 1
}

# asks CONFIG WORDS: whether the config says so, without its comments and blanks.
asks() {
    sed 's/#.*//' "$1" | tr -d '[:space:]' | grep -Eq "$2"
}

models=0
missing=0
for config in "$repository"/*/config.pbtxt; do
    [ -e "$config" ] || continue
    models=$((models + 1))
    model=${config%/config.pbtxt}
    has_weights "$model" && continue
    missing=$((missing + 1))
    name=${model##*/}
    echo "error: model_repository/$name: the weights are missing (expected a file such as 1/model.onnx)" >&2
    echo "hint: tritune export SOURCE --repository model_repository --name $name   (SOURCE: see model_repository/README.md)" >&2
done

if [ "$models" -eq 0 ]; then
    echo "error: model_repository: no model with a config.pbtxt (expected model_repository/NAME/config.pbtxt)" >&2
    echo "hint: tritune export SOURCE --repository model_repository --name NAME && tritune gen-config model_repository/NAME" >&2
    exit 3
fi
[ "$missing" -eq 0 ] || exit 3

# What the models ask of the server: the same as `tritune deploy` finds.
cache= limited= compatible=
for config in "$repository"/*/config.pbtxt; do
    model=${config%/config.pbtxt}
    own=$model/configs/${TRITON_CONFIG_NAME:-}.pbtxt
    [ -e "$own" ] && config=$own
    asks "$config" 'response_cache:?[{<]enable:(true|True|t|1)' && cache=yes
    asks "$config" 'rate_limiter:?[{<]' && limited=yes
    if grep -Eqs '"version_compatible" *: *true' "$model"/[0-9]*/*.json; then compatible=yes; fi
done
[ -z "$cache" ] || set -- "--cache-config=local,size=${TRITON_CACHE_SIZE:-104857600}" "$@"
[ -z "$limited" ] || set -- --rate-limit=execution_count "$@" # each resource as often as one instance asks at most
[ -z "$compatible" ] || set -- --backend-config=tensorrt,version-compatible=true "$@"

case ${TRITON_MODEL_CONTROL:-none} in
none) ;;
poll) set -- --model-control-mode=poll "$@" ;;
explicit)
    set -- --model-control-mode=explicit '--load-model=*' "$@"
    if [ -n "${TRITON_CONTROL_KEY:-}" ]; then
        guard="model-repository:triton-control-key=$TRITON_CONTROL_KEY"
        set -- "--http-restricted-api=$guard" "--grpc-restricted-protocol=$guard" "$@"
    else
        case ${TRITON_HOST:-127.0.0.1} in
        127.* | ::1 | '[::1]') ;;
        *) # whoever loads models runs code
            echo "error: TRITON_CONTROL_KEY: not set, and others reach the load API (TRITON_HOST=$TRITON_HOST)" >&2
            echo "hint: set it to what callers send as triton-control-key, or leave TRITON_HOST at 127.0.0.1" >&2
            exit 2
            ;;
        esac
    fi
    ;;
*)
    echo "error: TRITON_MODEL_CONTROL: no such mode (got $TRITON_MODEL_CONTROL; expected none, poll or explicit)" >&2
    exit 2
    ;;
esac

exec tritonserver --model-repository="$repository" --metrics-config=summary_latencies=true \
    ${TRITON_CONFIG_NAME:+"--model-config-name=$TRITON_CONFIG_NAME"} "$@"

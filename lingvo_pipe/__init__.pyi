from . import (
    base_layer as base_layer,
    gpipe as gpipe,
    input as input,
    keras as keras,
    layers as layers,
    models as models,
    py_utils as py_utils,
    testing as testing,
    tshape as tshape,
)
from .cli.runs import (
    Plan as Plan,
    Run as Run,
    evaluate as evaluate,
    plan as plan,
    train as train,
)
from .hyperparams import InstantiableParams as InstantiableParams, Params as Params
from .layers.core.base_layer import BaseLayer as BaseLayer
from .layers.core.forward_context import (
    ForwardContext as ForwardContext,
    current_context as current_context,
)
from .layers.core.weights import WeightInit as WeightInit, WeightParams as WeightParams
from .nested_map import NestedMap as NestedMap
from .pipeline.devices.stage_devices import initialize_devices as initialize_devices
from .pipeline.pipelining_layer import PipeliningLayer as PipeliningLayer
from .planner.measured.resolve_pipeline import resolve_pipeline as resolve_pipeline
from .serving.trained_model import TrainedModel as TrainedModel, load as load
from .training.optim.keras_optimizer import (
    OptimizerParams as OptimizerParams,
    ScheduleParams as ScheduleParams,
)
from .training.task.base_task import BaseTask as BaseTask
from .training.task.single_task_model_params import (
    SingleTaskModelParams as SingleTaskModelParams,
    register_model as register_model,
)

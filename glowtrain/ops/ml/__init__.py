"""ai.onnx.ml: the operators of models on tables."""

from glowtrain.ops.ml import ensemble, features, labels, linear, svm, trees

__all__ = ["ensemble", "features", "labels", "linear", "svm", "trees"]

//! The models of `tch::vision`, for 1000 classes.

use tch::vision::{
    alexnet, convmixer, densenet, dinov2, efficientnet, inception, mobilenet, resnet, squeezenet, vgg,
};

use crate::zoo::{Case, InputSpec, ZooEntry, entry, module};

const IMAGE: &[Case] = &[Case::f32("b1", &[InputSpec::float(&[1, 3, 224, 224])])];
const IMAGES: &[Case] = &[Case::bf16("bf16_b64", &[InputSpec::float(&[64, 3, 224, 224])])];
const IMAGES_F32: &[Case] = &[Case::f32("f32_b64", &[InputSpec::float(&[64, 3, 224, 224])])];
const IMAGE_299: &[Case] = &[Case::f32("b1", &[InputSpec::float(&[1, 3, 299, 299])])];
const IMAGES_299: &[Case] = &[Case::bf16("bf16_b64", &[InputSpec::float(&[64, 3, 299, 299])])];

macro_rules! vision {
    ($($name:literal: $make:expr),* $(,)?) => {
        &[$(entry!($name, "a model of tch::vision", 1, IMAGE, IMAGES, |p| module($make(p, 1000)))),*]
    };
}

pub(crate) const CLASSIFIERS: &[ZooEntry] = vision![
    "vision:alexnet": alexnet::alexnet,
    "vision:convmixer_1024_20": convmixer::c1024_20,
    "vision:convmixer_1536_20": convmixer::c1536_20,
    "vision:densenet121": densenet::densenet121,
    "vision:densenet161": densenet::densenet161,
    "vision:densenet169": densenet::densenet169,
    "vision:densenet201": densenet::densenet201,
    "vision:efficientnet_b0": efficientnet::b0,
    "vision:efficientnet_b1": efficientnet::b1,
    "vision:efficientnet_b2": efficientnet::b2,
    "vision:efficientnet_b3": efficientnet::b3,
    "vision:efficientnet_b4": efficientnet::b4,
    "vision:efficientnet_b5": efficientnet::b5,
    "vision:efficientnet_b6": efficientnet::b6,
    "vision:efficientnet_b7": efficientnet::b7,
    "vision:resnet18": resnet::resnet18,
    "vision:resnet34": resnet::resnet34,
    "vision:resnet50": resnet::resnet50,
    "vision:resnet101": resnet::resnet101,
    "vision:resnet152": resnet::resnet152,
    "vision:squeezenet1_0": squeezenet::v1_0,
    "vision:squeezenet1_1": squeezenet::v1_1,
    "vision:vgg11": vgg::vgg11,
    "vision:vgg11_bn": vgg::vgg11_bn,
    "vision:vgg13": vgg::vgg13,
    "vision:vgg13_bn": vgg::vgg13_bn,
    "vision:vgg16": vgg::vgg16,
    "vision:vgg16_bn": vgg::vgg16_bn,
    "vision:vgg19": vgg::vgg19,
    "vision:vgg19_bn": vgg::vgg19_bn,
];

pub(crate) const OTHERS: &[ZooEntry] = &[
    entry!("vision:inception_v3", "a model of tch::vision", 1, IMAGE_299, IMAGES_299, |p| {
        module(inception::v3(p, 1000))
    }),
    f32_only(entry!("vision:mobilenet_v2", "a model of tch::vision", 1, IMAGE, IMAGES_F32, |p| {
        module(mobilenet::v2(p, 1000))
    })),
    f32_only(entry!("vision:dinov2_vits14", "a model of tch::vision", 1, IMAGE, IMAGES_F32, |p| {
        module(dinov2::vit_small(p))
    })),
    f32_only(entry!("vision:dinov2_vitb14", "a model of tch::vision", 1, IMAGE, IMAGES_F32, |p| {
        module(dinov2::vit_base(p))
    })),
];

const fn f32_only(entry: ZooEntry) -> ZooEntry {
    ZooEntry { f32_only: true, ..entry }
}

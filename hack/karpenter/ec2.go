package main

import (
	"context"
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
)

// ec2ID is the provider id that the cloud provider of AWS would give a node.
func ec2ID(node string) string {
	sum := sha256.Sum256([]byte(node))
	return fmt.Sprintf("aws:///eu-west-1a/i-%x", sum[:9])[:len("aws:///eu-west-1a/i-")+17]
}

// ec2Client gives each Node that is created a provider id of EC2.
type ec2Client struct{ client.Client }

// Create implements client.Writer.
func (c ec2Client) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	if node, ok := object.(*corev1.Node); ok {
		node.Spec.ProviderID = ec2ID(node.Name)
	}
	return c.Client.Create(ctx, object, options...)
}

// ec2Provider is KWOK's provider, whose instances have provider ids of EC2.
type ec2Provider struct {
	*kwok.CloudProvider
	client client.Client
}

// Create implements cloudprovider.CloudProvider.
func (p *ec2Provider) Create(ctx context.Context, claim *v1.NodeClaim) (*v1.NodeClaim, error) {
	created, err := p.CloudProvider.Create(ctx, claim)
	if err != nil {
		return nil, err
	}
	created.Status.ProviderID = ec2ID(created.Status.NodeName)
	return created, nil
}

// Get implements cloudprovider.CloudProvider.
func (p *ec2Provider) Get(ctx context.Context, providerID string) (*v1.NodeClaim, error) {
	var nodes corev1.NodeList
	if err := p.client.List(ctx, &nodes); err != nil {
		return nil, err
	}
	for _, node := range nodes.Items {
		if node.Spec.ProviderID == providerID {
			return p.CloudProvider.Get(ctx, node.Name)
		}
	}
	return nil, cloudprovider.NewNodeClaimNotFoundError(fmt.Errorf("no node has the provider id %s", providerID))
}

// List implements cloudprovider.CloudProvider.
func (p *ec2Provider) List(ctx context.Context) ([]*v1.NodeClaim, error) {
	var nodes corev1.NodeList
	if err := p.client.List(ctx, &nodes, client.HasLabels{v1alpha1.KwokLabelKey}); err != nil {
		return nil, err
	}
	var claims []*v1.NodeClaim
	for _, node := range nodes.Items {
		claim, err := p.CloudProvider.Get(ctx, node.Name)
		if cloudprovider.IsNodeClaimNotFoundError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		claims = append(claims, claim)
	}
	return claims, nil
}
